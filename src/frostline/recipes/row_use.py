"""Do the trained rows of the input embedding occur in the training data at all? Else nothing ever reaches them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from frostline.config.wording import shorten_names
from frostline.errors import ConfigError, Problem
from frostline.trainability import TrainabilityPlan, show_rows
from frostline.trainability.decision import Decision


def rows_without_data(
    model: nn.Module, plan: TrainabilityPlan, examples: Iterable[Mapping[str, Any]]
) -> Iterator[tuple[Decision, Sequence[int]]]:
    """Trained rows of the table that token ids are looked up in, with those of them that no example holds.

    A table that is an output head as well is left out: each batch reaches all of its rows there.

    Args:
        examples: encoded ones, with `input_ids`.
    """
    entries = [entry for entry in plan.decisions.values() if entry.rows is not None]
    find = getattr(model, "get_input_embeddings", None)
    if not entries or find is None:
        return
    try:
        table = find()
    except NotImplementedError:  # transformers' answer of a model without one
        return
    names = [name for name, module in model.named_modules(remove_duplicate=False) if module is table]
    used: set[int] | None = None
    for entry in entries:
        owners = [path.rpartition(".")[0] for path in (entry.path, *entry.aliases)]
        if all(owner in names for owner in owners):
            used = {token for example in examples for token in example["input_ids"]} if used is None else used
            missing = [row for row in entry.rows or () if row not in used]
            if missing:
                yield entry, missing


def check_rows(model: nn.Module, plan: TrainabilityPlan, examples: Sequence[Mapping[str, Any]]) -> list[str]:
    """Refuse tables of which no trained row occurs in `examples`; a line for each of which some do not.

    Raises:
        ConfigError: with all of them.
    """
    problems: list[Problem] = []
    lines: list[str] = []
    for entry, missing in rows_without_data(model, plan, examples):
        count = len(entry.rows or ())
        if len(missing) < count:
            lines.append(
                f"{len(missing)} of {count} trained rows of {entry.path} occur in no training example and stay as "
                f"they are: {shorten_names(show_rows(missing).split(', '), 6)}"
            )
            continue
        problems.append(
            Problem(
                f"the trained rows {shorten_names(show_rows(missing).split(', '), 6)} of {entry.path} occur in no "
                f"training example, so that they would stay as they are",
                str(entry.rule.origin or entry.rule.kind),
                f"rows of tokens that the {len(examples):,} training examples hold",
                "name rows of such tokens, add examples that hold these, or remove the entry",
            )
        )
    if problems:
        raise ConfigError.from_problems(problems)
    return lines
