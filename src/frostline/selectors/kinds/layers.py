"""`layers`: blocks of the model's layer stack by position: a slice, an index, or a list of indices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import nn

from frostline.selectors.kinds._positions import Positions
from frostline.selectors.kinds._text import require_text
from frostline.selectors.kinds.name import NameKind
from frostline.selectors.matching import NothingFound
from frostline.selectors.selector import register_kind
from frostline.tree import ModuleTree


@register_kind
@dataclass(frozen=True)
class LayersKind:
    """Blocks of the block list: the outermost `ModuleList` whose children share a class, or the one that `of` names.

    Attributes:
        value: the text of a slice (`":8"`, `"-2:"`, `"::2"`) or a tuple of indices; negative and step as in Python.
        of: full path or tail of the list's path; needed where the model has several block lists.
    """

    key: ClassVar[str] = "layers"
    selects: ClassVar[str] = "modules"
    options: ClassVar[tuple[str, ...]] = ("of",)
    value: str | tuple[int, ...]
    of: NameKind | None = None

    @classmethod
    def parse(cls, value: Any, options: Mapping[str, Any]) -> Self:
        """An int, a slice as text, or a non-empty list of ints."""
        of = NameKind.parse(require_text(options["of"], "of"), {}) if "of" in options else None
        return cls(Positions.parse(value, "layers", "-2:").value, of)

    @property
    def pattern(self) -> str:
        """The positions as text."""
        return Positions(self.value).pattern

    def find(self, tree: ModuleTree, scope: bytearray | None) -> list[int]:
        """The chosen children of the one block list.

        Raises:
            NothingFound: no block list. LookupError: several of them, or a bound outside the list.
        """
        container = self._container(tree, scope)
        blocks = tree.children(container)
        path = tree.modules[container].path or "the root"
        positions = Positions(self.value).among(len(blocks), container=path, items="blocks", thing="list")
        return [blocks[position] for position in positions]

    def _container(self, tree: ModuleTree, scope: bytearray | None) -> int:
        if self.of is not None:
            named = [
                index
                for index in self.of.find(tree, None)
                if isinstance(tree.modules[index].module, (nn.ModuleList, nn.Sequential))
                and (scope is None or _touches(tree, index, scope))
            ]
        else:
            named = [index for index in tree.block_lists if scope is None or _touches(tree, index, scope)]
        if len(named) == 1:
            return named[0]
        lists = [f"{tree.modules[index].path} ({len(tree.children(index))} blocks)" for index in tree.block_lists]
        shown = "block lists of this model: " + (", ".join(lists) if lists else "none")
        if self.of is not None:
            what = f"of: {self.of} names {len(named)} lists of modules, but one is needed"
            fault = LookupError if named else NothingFound
            raise fault(what, shown, "write the full path of the list in `of:`")
        if named:
            first = tree.modules[named[0]].path
            raise LookupError(f"the model has {len(named)} block lists", shown, f"add for example `of: {first}`")
        raise NothingFound("no block list was found", shown, "select the modules by name, or name the list in `of:`")

    def __str__(self) -> str:
        return f"layers {Positions(self.value)}" + (f" of {self.of}" if self.of else "")


def _touches(tree: ModuleTree, index: int, scope: bytearray) -> bool:
    return any(scope[index : tree.modules[index].end])
