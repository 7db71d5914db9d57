"""What is wrong with decisions, and what a reader should know of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from frostline.config.wording import shorten_names
from frostline.errors import Problem
from frostline.trainability.decision import Decision
from frostline.trainability.draft import THAWED_ALTHOUGH_FROZEN
from frostline.trainability.legacy import LEGACY_KEYS, is_legacy
from frostline.trainability.required import Required
from frostline.trainability.rules import FreezeRules
from frostline.trainability.selected import Selected

_MAX_NAMES = 5


def untrainable(stages: Sequence[Sequence[Decision]]) -> list[Problem]:
    """Tensors that are to train in numbers that cannot take the steps of an optimizer."""
    trained = {decision.path: decision for stage in reversed(stages) for decision in stage if decision.trains}
    return [
        Problem(
            f"{decision.path} is to train, but its dtype is {decision.dtype}",
            str(decision.rule.origin or decision.rule.kind),
            "floating-point parameters train; integer and packed ones cannot",
            'exclude it with `except: [{param: "..."}]`, or load the model without quantization',
        )
        for decision in trained.values()
        if not decision.dtype.startswith(("float", "bfloat", "complex"))
    ]


def frozen_new(stages: Sequence[Sequence[Decision]], rules: FreezeRules) -> list[Problem]:
    """New tensors that no phase trains, unless that is meant: they would stay as they were drawn."""
    if rules.allow_frozen_new:
        return []
    frozen = _frozen_new(stages)
    if not frozen:
        return []
    is_legacy_rule = frozen[0].rule.text.startswith(LEGACY_KEYS)
    names = ", ".join(decision.path for decision in frozen[:_MAX_NAMES])
    return [
        Problem(
            f"{names} {'is' if len(frozen) == 1 else 'are'} new (not in the base files), but frozen: random for ever",
            str(frozen[0].rule.origin),
            f"frozen by {frozen[0].rule}",
            "write freeze_modules with selectors that leave it out, in place of the legacy key"
            if is_legacy_rule
            else f"{_thaw(frozen)}, or set `allow_frozen_new: true` to keep it random and saved",
        )
    ]


def _thaw(frozen: Sequence[Decision]) -> str:
    modules = list(dict.fromkeys(entry.path.rpartition(".")[0] or entry.path for entry in frozen))
    return f"take it out of freeze_modules, name it in unfreeze_modules ({', '.join(modules[:_MAX_NAMES])})"


def _frozen_new(stages: Sequence[Sequence[Decision]]) -> list[Decision]:
    """What is new and trains in no stage; not what the framework keeps frozen, which may stay as it was drawn."""
    trained = {entry.path for stage in stages for entry in stage if entry.kind == "new" and entry.trains}
    return [
        entry
        for entry in stages[0]
        if entry.kind == "new" and entry.path not in trained and entry.rule.kind != "required"
    ]


def nothing_trains(decisions: Sequence[Decision], rules: FreezeRules) -> Problem:
    """The empty trainable set, with the rules that made it so."""
    by_rule: dict[str, int] = {}
    for decision in decisions:
        by_rule[str(decision.rule)] = by_rule.get(str(decision.rule), 0) + 1
    return Problem(
        f"nothing trains: all {len(decisions)} parameters are frozen",
        str(rules.origin),
        "\n".join(f"{count} by {rule}" for rule, count in by_rule.items()),
        "thaw a part with `unfreeze_modules`, or add adapters with `peft`",
    )


def plan_notes(
    stages: Sequence[Sequence[Decision]],
    rules: FreezeRules,
    chosen: Sequence[Selected],
) -> Iterable[str]:
    """What the decisions alone do not show: what a model built otherwise, ties, idle entries, modes."""
    decisions = stages[0]
    thawed = list(
        dict.fromkeys(entry.path for stage in stages for entry in stage if entry.note == THAWED_ALTHOUGH_FROZEN)
    )
    if thawed:
        yield f"thawed although the model built it frozen: {shorten_names(thawed, _MAX_NAMES)}"
    tied = [decision for decision in decisions if decision.aliases]
    for decision in tied:
        state = "trains" if decision.trains else "frozen"
        yield f"one tensor, {state}: {decision.path} = {' = '.join(decision.aliases)}"
    for selector, selection in chosen:
        if not selection.matches and not is_legacy(selector):
            yield f"optional selector {selector} ({selector.origin.short}) matches nothing here"
    new_frozen = [entry.path for entry in _frozen_new(stages)]
    if new_frozen:
        yield f"new but frozen (allow_frozen_new), kept in every checkpoint: {shorten_names(new_frozen, _MAX_NAMES)}"
    if rules.frozen_mode == "train":
        yield "frozen_mode train: dropout and normalization statistics of frozen modules follow the model's mode"
    for selector, _ in chosen:
        if selector.frozen_mode is not None and selector.frozen_mode != rules.frozen_mode:
            what = "stay still" if selector.frozen_mode == "eval" else "follow the model's mode"
            yield (
                f"frozen_mode {selector.frozen_mode} of {selector} ({selector.origin.short}): dropout and "
                f"normalization statistics there {what}"
            )


def idle_thaw_notes(
    built: bytes, frozen: Iterable[Selected], thawed: Iterable[Selected], required: Required, rules: FreezeRules
) -> Iterator[str]:
    """A remark on entries of `unfreeze_modules` that full fine-tuning could do without: most likely more was meant.

    Args:
        built: mask over the parameters: trains before any entry.
        frozen, thawed: the entries of the two lists of the block, with what they select.
    """
    anyway = int.from_bytes(built, "little")
    for _, selection in frozen:
        anyway &= ~int.from_bytes(selection.params, "little")
    held = sum(1 << (8 * index) for index in required.params)
    idle: list[str] = []
    for selector, selection in thawed:
        asked = int.from_bytes(selection.params, "little") & ~held
        # Rows are refused where they have no effect, and a tag is an effect.
        if asked and asked & ~anyway == 0 and not selector.has_rows and not selector.conditional:
            idle.append(f"{selector} ({selector.origin.short})")
    if idle:
        is_listed = any(not is_legacy(selector) for selector in rules.freeze)
        why = "thaws nothing: all of it trains" if len(idle) == 1 else "thaw nothing: all of them train"
        yield (
            f"unfreeze_modules {shorten_names(idle, _MAX_NAMES)} {why} anyway; to train nothing else, "
            + ('add "*" to freeze_modules' if is_listed else 'add freeze_modules: ["*"]')
        )
