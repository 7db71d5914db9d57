"""`glob`: fnmatch over the full path, case-sensitive; `*` also crosses dots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from frostline.selectors.kinds._text import matcher, require_text
from frostline.selectors.selector import register_kind
from frostline.tree import ModuleTree


@register_kind
@dataclass(frozen=True)
class GlobKind:
    """Every module whose full path matches the fnmatch pattern."""

    key: ClassVar[str] = "glob"
    selects: ClassVar[str] = "modules"
    options: ClassVar[tuple[str, ...]] = ()
    value: str

    @classmethod
    def parse(cls, value: Any, options: Mapping[str, Any]) -> Self:
        """Any non-empty string."""
        return cls(require_text(value, "glob"))

    @property
    def pattern(self) -> str:
        """The pattern as written."""
        return self.value

    def find(self, tree: ModuleTree, scope: bytearray | None) -> list[int]:
        """Modules whose full path matches."""
        matches = matcher(self.value)
        return [index for index, ref in enumerate(tree.modules) if not ref.is_adapter and matches(ref.path)]

    def __str__(self) -> str:
        return f'glob "{self.value}"'
