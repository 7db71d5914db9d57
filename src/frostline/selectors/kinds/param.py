"""`param`: single parameters, by fnmatch over the full path; the only kind that reaches adapter internals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from frostline.selectors.kinds._text import require_text, wildcard
from frostline.selectors.selector import register_kind
from frostline.tree import ModuleTree


@register_kind
@dataclass(frozen=True)
class ParamKind:
    """Every parameter whose full path matches the fnmatch pattern (case-sensitive, `*` crosses dots)."""

    key: ClassVar[str] = "param"
    selects: ClassVar[str] = "params"
    options: ClassVar[tuple[str, ...]] = ()
    value: str

    @classmethod
    def parse(cls, value: Any, options: Mapping[str, Any]) -> Self:
        """Any non-empty string."""
        return cls(require_text(value, "param"))

    @property
    def pattern(self) -> str:
        """The pattern as written."""
        return self.value

    def find(self, tree: ModuleTree, scope: bytearray | None) -> list[int]:
        """Parameters whose full path matches."""
        matches = wildcard(self.value).fullmatch
        return [index for index, ref in enumerate(tree.params) if matches(ref.path)]

    def __str__(self) -> str:
        return f'param "{self.value}"'
