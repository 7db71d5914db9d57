"""`type`: the class name of the module or of one of its bases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Self

from frostline.selectors.kinds._text import has_wildcard, require_text
from frostline.selectors.selector import register_kind
from frostline.tree import ModuleTree


@cache
def _class_names(cls: type) -> frozenset[str]:
    return frozenset(base.__name__ for base in cls.__mro__ if base is not object)


@register_kind
@dataclass(frozen=True)
class TypeKind:
    """Every module of that class or of a subclass; `Linear` also matches an adapted linear."""

    key: ClassVar[str] = "type"
    selects: ClassVar[str] = "modules"
    options: ClassVar[tuple[str, ...]] = ()
    value: str

    @classmethod
    def parse(cls, value: Any, options: Mapping[str, Any]) -> Self:
        """A class name without its module."""
        text = require_text(value, "type")
        if has_wildcard(text) or "." in text:
            raise ValueError(
                f'type "{text}" is not a class name',
                "the name alone, such as `LayerNorm`",
                f"write `{text.rpartition('.')[2]}`" if "." in text else "name one class per selector",
            )
        return cls(text)

    @property
    def pattern(self) -> str:
        """The class name."""
        return self.value

    def find(self, tree: ModuleTree, scope: bytearray | None) -> list[int]:
        """Modules of that class."""
        return [
            index
            for index, ref in enumerate(tree.modules)
            if not ref.is_adapter and self.value in _class_names(type(ref.module))
        ]

    def __str__(self) -> str:
        return f"type {self.value}"
