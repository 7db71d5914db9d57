"""Applies a selector to a tree: which modules and which parameters it selects.

The modifiers live here; how a kind finds its matches lives in `selectors/kinds`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from frostline.errors import Problem, SelectorError
from frostline.selectors.suggestions import describe_miss
from frostline.tree import ModuleTree

if TYPE_CHECKING:
    from frostline.selectors.selector import Selector


class NothingFound(LookupError):
    """A kind cannot be applied because the model has no such part; an `optional` selector then selects nothing."""


@dataclass(frozen=True)
class Selection:
    """What one selector selects in one tree.

    Attributes:
        matches: indices of the matched modules, or of the matched parameters for a `param` selector.
        modules: mask over `tree.modules`: the matched modules with their subtrees (all zero for `param`).
        params: mask over `tree.params`.
    """

    matches: tuple[int, ...]
    modules: bytearray
    params: bytearray

    @property
    def num_params(self) -> int:
        """Number of selected parameter names."""
        return self.params.count(1)


def find_selection(selector: Selector, tree: ModuleTree) -> Selection:
    """Apply kind, `within` and `except` in this order.

    Raises:
        SelectorError: the kind cannot be applied to this tree (a layer index outside the list, several block lists).
    """
    scope = None
    if selector.within is not None:
        scope = find_selection(selector.within, tree).modules
    try:
        found = selector.kind.find(tree, scope)
    except LookupError as error:
        if selector.optional and isinstance(error, NothingFound):
            return Selection((), bytearray(len(tree.modules)), bytearray(len(tree.params)))
        raise SelectorError(
            f"{selector} cannot be applied to this model: {error.args[0]}",
            where=selector.origin,
            possible=error.args[1] if len(error.args) > 1 else "selectors of what this model has",
            fix=error.args[2] if len(error.args) > 2 else "correct the selector",
        ) from None
    modules, params = bytearray(len(tree.modules)), bytearray(len(tree.params))
    if selector.selects_params:
        if scope is not None:
            found = [index for index in found if scope[tree.params[index].owner]]
        for index in found:
            params[index] = 1
    else:
        if scope is not None:
            found = [index for index in found if scope[index]]
        for index in found:
            if modules[index]:  # in the subtree of another match
                continue
            ref = tree.modules[index]
            modules[index : ref.end] = b"\x01" * (ref.end - index)
            params[ref.param_start : ref.param_end] = b"\x01" * (ref.param_end - ref.param_start)
        for index in tree.adapter_params:
            params[index] = 0
    aways = [find_selection(excepted, tree) for excepted in selector.excepts]
    for away in aways:
        _clear(params, away.params)
    for away in aways:
        for index, is_set in enumerate(away.modules):
            # An `except` within the excepted part may have left parameters below: then the module stays for these.
            if is_set and params.find(1, tree.modules[index].param_start, tree.modules[index].param_end) < 0:
                modules[index] = 0
    if aways:
        kept = params if selector.selects_params else modules
        found = [index for index in found if kept[index]]
    return Selection(tuple(found), modules, params)


def _clear(mask: bytearray, away: bytearray) -> None:
    for index, is_set in enumerate(away):
        if is_set:
            mask[index] = 0


def require_matches(selectors: Iterable[Selector], tree: ModuleTree, *, need_params: bool = True) -> list[Selection]:
    """Apply all `selectors` and refuse those that select nothing, all at once.

    With `need_params` a match without any parameter counts as nothing.

    Raises:
        SelectorError: one problem for each dead selector (also for a dead `within` or `except` part).
    """
    selections: list[Selection] = []
    problems: list[Problem] = []
    for selector in selectors:
        try:
            selection = selector.select(tree)
            problems.extend(_dead_parts(selector, selection, tree, need_params))
        except SelectorError as error:
            problems.extend(error.problems)
        else:
            selections.append(selection)
    if problems:
        raise SelectorError.from_problems(problems)
    return selections


def _dead_parts(selector: Selector, selection: Selection, tree: ModuleTree, need_params: bool) -> Sequence[Problem]:
    if selector.optional:
        return ()
    for part, role in [(selector.within, "within"), *((part, "except") for part in selector.excepts)]:
        if part is not None and not part.optional and not part.select(tree).matches:
            return [describe_miss(part, tree, role=role)]
    is_empty = not selection.matches or (need_params and not selection.num_params)
    return [describe_miss(selector, tree, matches=selection.matches)] if is_empty else ()
