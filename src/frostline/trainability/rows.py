"""A module tree as plain rows, which outlive the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

from frostline.selectors import Selector
from frostline.tree import ModuleTree


class ModuleRow(NamedTuple):
    """One module: canonical path, class name, index behind its subtree, whether it belongs to an adapter.

    `has_params`: its subtree holds parameters. `frozen_mode` is what the freeze config says of just this module (None:
    what it says of all).
    """

    path: str
    type_name: str
    end: int
    is_adapter: bool
    has_params: bool
    frozen_mode: str | None = None


def module_rows(tree: ModuleTree, freezing: Iterable[Selector] = ()) -> tuple[ModuleRow, ...]:
    """The rows of `tree`, in preorder; `freezing` are the selectors that may have a `frozen_mode` of their own."""
    return _rows(tree, frozen_modes(tree, list(freezing)))


def carried_rows(tree: ModuleTree, rows: Sequence[ModuleRow]) -> tuple[ModuleRow, ...]:
    """The rows of `tree` with the modes of `rows`, which are of the same model before a step; see `carried_modes`."""
    return _rows(tree, carried_modes(tree, rows, [row.frozen_mode for row in rows]))


def carried_modes(tree: ModuleTree, rows: Sequence[ModuleRow], modes: Sequence[str | None]) -> tuple[str | None, ...]:
    """For each module of `tree` its mode of `modes`, which go with `rows`; a module unknown to them has its parent's.

    Selectors are not asked again: those that count positions would find others in a stage of a pipeline.
    """
    if not any(modes):
        return ()
    known: Mapping[str, str | None] = {row.path: mode for row, mode in zip(rows, modes, strict=True)}
    carried: list[str | None] = []
    for ref in tree.modules:  # parents before their children
        inherited = carried[ref.parent] if ref.parent >= 0 else None
        carried.append(known.get(ref.path, inherited))
    return tuple(carried)


def _rows(tree: ModuleTree, modes: Sequence[str | None]) -> tuple[ModuleRow, ...]:
    columns = (
        [ref.path for ref in tree.modules],
        [type(ref.module).__name__ for ref in tree.modules],
        [ref.end for ref in tree.modules],
        [ref.is_adapter for ref in tree.modules],
        [ref.param_end > ref.param_start for ref in tree.modules],
        modes or repeat(None, len(tree.modules)),
    )
    return tuple(map(ModuleRow._make, zip(*columns, strict=True)))


def frozen_modes(tree: ModuleTree, freezing: Sequence[Selector]) -> tuple[str | None, ...]:
    """For each module the mode of the last selector that selects it; empty where no selector has one."""
    if not any(selector.frozen_mode for selector in freezing):
        return ()
    modes: list[str | None] = [None] * len(tree.modules)
    for selector in freezing:
        selection = selector.select(tree)
        for index, ref in enumerate(tree.modules):
            if selector.selects_params:
                own = selection.params[ref.param_start : ref.own_param_end]
                is_selected = bool(own) and all(own)
            else:
                is_selected = bool(selection.modules[index])
            if is_selected:
                modes[index] = selector.frozen_mode
    return tuple(modes)
