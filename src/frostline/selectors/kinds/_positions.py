"""Positions in something countable, as the config writes them: a slice, an index, or a list of indices."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, cast


@dataclass(frozen=True)
class Positions:
    """The text of a slice (`":8"`, `"-2:"`, `"::2"`) or a tuple of indices; negative and step as in Python."""

    value: str | tuple[int, ...]

    @classmethod
    def parse(cls, value: Any, key: str, example: str) -> Self:
        """An int, a slice as text, or a non-empty list of ints. Raises ValueError in plain words that name `key`."""
        wanted = (
            f"an index `3`, a slice `{example}`, or a list `[0, 3, -1]`",
            f'write for example `{key}: "{example}"`',
        )
        if isinstance(value, int) and not isinstance(value, bool):
            return cls((value,))
        if isinstance(value, str):
            if _is_int(value):
                return cls((int(value),))
            _parse_slice(value, key, wanted)
            return cls(value)
        if isinstance(value, list | tuple):
            items = cast("Sequence[Any]", value)
            if items and all(type(item) is int for item in items):
                return cls(tuple(items))
        raise ValueError(f"`{key}` is {value!r}, but it takes positions", *wanted)

    def among(self, count: int, *, container: str, items: str, thing: str) -> list[int]:
        """The chosen positions of `count`, sorted, each once.

        Args:
            container: names what is counted, `items` its parts, and `thing` its kind, for messages.

        Raises:
            LookupError: a bound outside, or nothing chosen.
        """
        outside = (
            f"{container} has {count} {items}: 0 to {count - 1}, or -{count} to -1",
            f"choose positions inside the {thing}",
        )
        if isinstance(self.value, tuple):
            for position in self.value:
                if not -count <= position < count:
                    raise LookupError(f"index {position} is outside the {thing}", *outside)
            return sorted({position % count for position in self.value})
        start, stop, step = _parse_slice(self.value, "", ("", ""))
        for bound in (start, stop):
            if bound is not None and not -count <= bound <= count:
                raise LookupError(f"bound {bound} is outside the {thing}", *outside)
        positions = range(count)[slice(start, stop, step)]
        if not positions:
            raise LookupError(f'the slice "{self.value}" is empty', *outside)
        return sorted(positions)

    @property
    def pattern(self) -> str:
        """As written, without quotes."""
        return self.value if isinstance(self.value, str) else ",".join(str(index) for index in self.value)

    def __str__(self) -> str:
        return f'"{self.value}"' if isinstance(self.value, str) else ", ".join(str(index) for index in self.value)


def _is_int(text: str) -> bool:
    return re.fullmatch(r"\s*[+-]?[0-9]+\s*", text) is not None


def _parse_slice(text: str, key: str, wanted: tuple[str, str]) -> tuple[int | None, int | None, int | None]:
    parts = text.split(":")
    if not 2 <= len(parts) <= 3 or not all(not part.strip() or _is_int(part) for part in parts):
        raise ValueError(f'`{key}` is "{text}", which is no slice', *wanted)
    numbers = [int(part) if part.strip() else None for part in parts]
    start, stop, step = (*numbers, None)[:3]
    if step == 0:
        raise ValueError(f'`{key}` is "{text}", but a step of 0 goes nowhere', *wanted)
    return start, stop, step
