"""A module tree as plain rows, which outlive the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat

from frostline.selectors import Selector
from frostline.tree import ModuleTree
from frostline.tree.records import quick_maker


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """One module: canonical path, class name, index behind its subtree, whether it belongs to an adapter.

    `frozen_mode` is what the freeze config says of just this module (None: what it says of all).
    """

    path: str
    type_name: str
    end: int
    is_adapter: bool
    frozen_mode: str | None = None


def module_rows(tree: ModuleTree, freezing: Iterable[Selector] = ()) -> tuple[ModuleRow, ...]:
    """The rows of `tree`, in preorder; `freezing` are the selectors that may have a `frozen_mode` of their own."""
    modes = _frozen_modes(tree, list(freezing)) or repeat(None, len(tree.modules))
    return tuple(
        _make_row(ref.path, type(ref.module).__name__, ref.end, ref.is_adapter, mode)
        for ref, mode in zip(tree.modules, modes, strict=True)
    )


_make_row = quick_maker(ModuleRow)


def _frozen_modes(tree: ModuleTree, freezing: Sequence[Selector]) -> list[str | None]:
    """For each module the mode of the last selector that selects it; empty where no selector has one."""
    if not any(selector.frozen_mode for selector in freezing):
        return []
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
    return modes
