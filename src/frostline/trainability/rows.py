"""A module tree as plain rows, which outlive the model."""

from __future__ import annotations

from dataclasses import dataclass

from frostline.tree import ModuleTree
from frostline.tree.records import quick_maker


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """One module: canonical path, class name, index behind its subtree, whether it belongs to an adapter."""

    path: str
    type_name: str
    end: int
    is_adapter: bool


def module_rows(tree: ModuleTree) -> tuple[ModuleRow, ...]:
    """The rows of `tree`, in preorder."""
    return tuple(_make_row(ref.path, type(ref.module).__name__, ref.end, ref.is_adapter) for ref in tree.modules)


_make_row = quick_maker(ModuleRow)
