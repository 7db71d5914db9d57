"""`regex`: a regular expression that must match the full path."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from frostline.selectors.kinds._text import require_text
from frostline.selectors.selector import register_kind
from frostline.tree import ModuleTree


@register_kind
@dataclass(frozen=True)
class RegexKind:
    """Every module whose full path the expression matches from end to end."""

    key: ClassVar[str] = "regex"
    selects: ClassVar[str] = "modules"
    options: ClassVar[tuple[str, ...]] = ()
    value: str

    @classmethod
    def parse(cls, value: Any, options: Mapping[str, Any]) -> Self:
        """A valid Python regular expression."""
        text = require_text(value, "regex")
        try:
            re.compile(text)
        except re.error as error:
            raise ValueError(
                f'regex "{text}" is not valid: {error}',
                "Python regular expressions; in double-quoted YAML a backslash is written twice",
                "correct the expression",
            ) from None
        return cls(text)

    @property
    def pattern(self) -> str:
        """The expression as written."""
        return self.value

    def find(self, tree: ModuleTree, scope: bytearray | None) -> list[int]:
        """Modules whose full path matches."""
        matches = re.compile(self.value).fullmatch
        return [index for index, ref in enumerate(tree.modules) if not ref.is_adapter and matches(ref.path)]

    def __str__(self) -> str:
        return f'regex "{self.value}"'
