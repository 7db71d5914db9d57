"""Bare string: the full path, or any tail of it that starts at a component; wildcards stay inside a component."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from frostline.selectors.kinds._text import has_wildcard, require_text, wildcard
from frostline.selectors.selector import register_kind
from frostline.tree import ModuleTree


@register_kind
@dataclass(frozen=True)
class NameKind:
    """`bert` matches `bert` and `model.bert`, never `albert`; `vision*` matches `model.vision_tower`.

    `*` alone also matches the root, and so the whole model.
    """

    key: ClassVar[str] = "name"
    selects: ClassVar[str] = "modules"
    options: ClassVar[tuple[str, ...]] = ()
    value: str

    @classmethod
    def parse(cls, value: Any, options: Mapping[str, Any]) -> Self:
        """Any non-empty string."""
        text = require_text(value, "selector")
        if text.startswith(".") or text.endswith(".") or ".." in text:
            raise ValueError(
                f'"{text}" has an empty component',
                "components joined by single dots, such as `encoder.layer`",
                "remove the dot; a name already matches every tail of a path",
            )
        return cls(text)

    @property
    def pattern(self) -> str:
        """The text as written."""
        return self.value

    def find(self, tree: ModuleTree, scope: bytearray | None) -> list[int]:
        """Modules whose path ends with the components of the pattern."""
        components = self.value.split(".")
        count = len(components)
        found: list[int] = []
        if not has_wildcard(self.value):
            tail = "." + self.value
            named = tree.modules_named.get(components[-1], ())
            paths = ((index, tree.modules[index].path) for index in named)
            return [index for index, path in paths if path == self.value or path.endswith(tail)]
        patterns = [wildcard(component) for component in components]
        for index, ref in enumerate(tree.modules):
            if ref.is_adapter:
                continue
            parts = ref.path.rsplit(".", count)[-count:]
            if len(parts) == count and all(
                pattern.fullmatch(part) for pattern, part in zip(patterns, parts, strict=True)
            ):
                found.append(index)
        return found

    def __str__(self) -> str:
        return f'"{self.value}"'
