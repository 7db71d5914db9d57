"""How far a freeze config reaches in the base tree: what adapter injection has to respect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from frostline.trainability.required import find_required
from frostline.trainability.rules import FreezeRules
from frostline.trainability.selected import all_selectors, require_selections
from frostline.trainability.trained_rows import named_in_rows
from frostline.tree import ModuleTree


@dataclass(frozen=True)
class Reach:
    """How far the freeze config reaches in the base tree: what adapter injection has to respect.

    Attributes:
        left_alone: mask over modules: inside `freeze_modules` and not thawed, or with new parameters that it freezes.
        trained_in_full: mask over parameters: thawed by a selector in any phase, or new and not frozen by one.
        in_rows: mask over parameters: rows of it are frozen or thawed apart from the others.
        required: index of each module that the framework keeps frozen -> why.
    """

    left_alone: bytearray
    trained_in_full: bytearray
    in_rows: bytearray
    required: Mapping[int, str] = field(default_factory=dict[int, str])


def reach_of(tree: ModuleTree, rules: FreezeRules, new: frozenset[str] = frozenset()) -> Reach:
    """Where `rules` reach before adapters are there.

    Raises:
        SelectorError: a module selector selects nothing.
    """
    require_selections([selector for selector in all_selectors(rules) if not selector.selects_params], tree)
    in_rows = bytearray(len(tree.params))
    for index, _ in named_in_rows(tree, (*rules.freeze, *rules.unfreeze)):
        in_rows[index] = 1
    left_alone = bytearray(len(tree.modules))
    frozen = bytearray(len(tree.params))
    for selector in rules.freeze:
        if selector.has_rows:
            continue
        selection = selector.select(tree)
        _set(left_alone, selection.modules)
        _set(frozen, selection.params)
    trained = bytearray(len(tree.params))
    for selector in rules.unfreeze:
        if selector.has_rows:
            continue
        selection = selector.select(tree)
        _set(trained, selection.params)
        for index, is_set in enumerate(selection.modules):
            if is_set:
                left_alone[index] = 0
    for selector in (selector for phase in rules.phases for selector in phase.unfreeze):
        _set(trained, selector.select(tree).params)  # adapters are injected once, so for what any phase trains
    for index, ref in enumerate(tree.params):
        if ref.path in new and frozen[index] and not trained[index]:
            left_alone[ref.owner] = 1
        elif ref.path in new:
            trained[index] = 1
    required = find_required(tree)
    for index in required.params:
        trained[index] = 0
    return Reach(left_alone, trained, in_rows, {index: row.reason for index, row in required.modules.items()})


def _set(mask: bytearray, other: bytearray) -> None:
    for index, is_set in enumerate(other):
        if is_set:
            mask[index] = 1
