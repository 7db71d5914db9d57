"""`layers`: blocks of the model's layer stack by position: a slice, an index, or a list of indices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import nn

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
        wanted = ("an index `3`, a slice `-2:`, or a list `[0, 3, -1]`", 'write for example `layers: "-2:"`')
        if isinstance(value, bool) or value is None:
            raise ValueError(f"`layers` is {value!r}, but it takes positions", *wanted)
        if isinstance(value, int):
            return cls((value,), of)
        if isinstance(value, str):
            if _is_int(value):
                return cls((int(value),), of)
            _parse_slice(value, wanted)
            return cls(value, of)
        if isinstance(value, list) and value and all(type(item) is int for item in value):
            return cls(tuple(value), of)
        raise ValueError(f"`layers` is {value!r}, but it takes positions", *wanted)

    @property
    def pattern(self) -> str:
        """The positions as text."""
        return self.value if isinstance(self.value, str) else ",".join(str(index) for index in self.value)

    def find(self, tree: ModuleTree, scope: bytearray | None) -> list[int]:
        """The chosen children of the one block list.

        Raises:
            NothingFound: no block list. LookupError: several of them, or a bound outside the list.
        """
        container = self._container(tree, scope)
        blocks = tree.children(container)
        count, path = len(blocks), tree.modules[container].path or "the root"
        outside = (
            f"{path} has {count} blocks: 0 to {count - 1}, or -{count} to -1",
            "choose positions inside the list",
        )
        if isinstance(self.value, tuple):
            for position in self.value:
                if not -count <= position < count:
                    raise LookupError(f"index {position} is outside the list", *outside)
            chosen = sorted({position % count for position in self.value})
            return [blocks[position] for position in chosen]
        start, stop, step = _parse_slice(self.value, ("", ""))
        for bound in (start, stop):
            if bound is not None and not -count <= bound <= count:
                raise LookupError(f"bound {bound} is outside the list", *outside)
        positions = range(count)[slice(start, stop, step)]
        if not positions:
            raise LookupError(f'the slice "{self.value}" is empty', *outside)
        return [blocks[position] for position in sorted(positions)]

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
        shown = f'"{self.value}"' if isinstance(self.value, str) else ", ".join(str(index) for index in self.value)
        return f"layers {shown}" + (f" of {self.of}" if self.of else "")


def _touches(tree: ModuleTree, index: int, scope: bytearray) -> bool:
    return any(scope[index : tree.modules[index].end])


def _is_int(text: str) -> bool:
    return re.fullmatch(r"\s*[+-]?[0-9]+\s*", text) is not None


def _parse_slice(text: str, wanted: tuple[str, str]) -> tuple[int | None, int | None, int | None]:
    parts = text.split(":")
    if not 2 <= len(parts) <= 3 or not all(not part.strip() or _is_int(part) for part in parts):
        raise ValueError(f'`layers` is "{text}", which is no slice', *wanted)
    numbers = [int(part) if part.strip() else None for part in parts]
    start, stop, step = (*numbers, None)[:3]
    if step == 0:
        raise ValueError(f'`layers` is "{text}", but a step of 0 goes nowhere', *wanted)
    return start, stop, step
