"""`path`: exactly one full path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from frostline.selectors.kinds._text import require_text
from frostline.selectors.selector import register_kind
from frostline.tree import ModuleTree


@register_kind
@dataclass(frozen=True)
class PathKind:
    """The module at exactly this canonical path; no wildcards."""

    key: ClassVar[str] = "path"
    selects: ClassVar[str] = "modules"
    options: ClassVar[tuple[str, ...]] = ()
    value: str

    @classmethod
    def parse(cls, value: Any, options: Mapping[str, Any]) -> Self:
        """Any non-empty string."""
        return cls(require_text(value, "path"))

    @property
    def pattern(self) -> str:
        """The path as written."""
        return self.value

    def find(self, tree: ModuleTree, scope: bytearray | None) -> list[int]:
        """The module at that path, if there is one."""
        index = tree.module_index.get(self.value)
        return [] if index is None or tree.modules[index].is_adapter else [index]

    def __str__(self) -> str:
        return f'path "{self.value}"'
