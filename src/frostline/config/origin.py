"""Where a config value came from: file, line and dotted key.

Knows nothing of YAML libraries or of what the values mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Key = str | int

COMMAND_LINE = "command line"  # stands in for the file of an overridden value


def join_keys(keys: tuple[Key, ...]) -> str:
    """`("freeze_config", "freeze_modules", 0, "path")` -> `freeze_config.freeze_modules[0].path`."""
    text = ""
    for key in keys:
        text += f"[{key}]" if isinstance(key, int) else (f".{key}" if text else str(key))
    return text


@dataclass(frozen=True)
class Origin:
    """Place of one value. `file` and `line` are None for values given in Python; `line` counts from 1."""

    key: str = ""
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        place = self.file or ""
        if self.line is not None:
            place = f"{place}, line {self.line}" if place else f"line {self.line}"
        if place and self.key:
            return f"{place}: {self.key}"
        return place or self.key or "argument"

    @property
    def short(self) -> str:
        """`line 4` where the line is known, else the key: what a table has room for."""
        return f"line {self.line}" if self.line is not None else (self.key or "argument")


@dataclass(frozen=True)
class Origins:
    """Looks up the `Origin` of a value by its keys; a view below a prefix shares the same table.

    `overrides` names keys that came from the command line (no line; shown as `command line`).
    """

    file: str | None = None
    lines: Mapping[tuple[Key, ...], int] = field(default_factory=dict)
    overrides: frozenset[tuple[Key, ...]] = frozenset()
    prefix: tuple[Key, ...] = ()

    def below(self, *keys: Key) -> Origins:
        """The same table seen from below `keys`."""
        return Origins(self.file, self.lines, self.overrides, self.prefix + keys)

    def at(self, *keys: Key) -> Origin:
        """Origin of the value at `keys`; falls back to the nearest enclosing key that has a line."""
        full = self.prefix + keys
        for length in range(len(full), 0, -1):
            if full[:length] in self.overrides:
                return Origin(join_keys(full), COMMAND_LINE, None)
            if full[:length] in self.lines:
                return Origin(join_keys(full), self.file, self.lines[full[:length]])
            if length == len(full) and any(place[:length] == full for place in self.overrides):
                return Origin(join_keys(full), COMMAND_LINE, None)  # made by an override of a key in it
        return Origin(join_keys(full), self.file, None)
