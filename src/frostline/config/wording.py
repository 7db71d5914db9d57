"""Plain words for values, keys and lists of choices in messages. Knows nothing of sections or of pydantic."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard, cast

_LIMIT = 60


def show(value: Any) -> str:
    """The value as a user would recognize it: `0`, `true`, `null`, `the text "8"`, `the list [1, 2]`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return f'the text "{_shorten(value)}"' if value else "empty text"
    if isinstance(value, Mapping):
        return f"the mapping {_shorten(flow(value))}" if value else "an empty mapping"
    if isinstance(value, list | tuple):
        return f"the list {_shorten(flow(value))}" if value else "an empty list"
    return f"the Python object {_shorten(repr(value))}"


def flow(value: Any) -> str:
    """`value` in one line of YAML flow style, for snippets to paste."""
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return "{" + ", ".join(f"{flow(str(key))}: {flow(child)}" for key, child in items) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(flow(child) for child in cast("Sequence[Any]", value)) + "]"
    if isinstance(value, str):
        return _flow_text(value)
    return "null" if value is None else show(value)


def _flow_text(text: str) -> str:
    plain = text and all(char.isalnum() or char in "_-/." for char in text) and text[0].isalpha()
    if plain and text.lower() not in ("true", "false", "null"):
        return text
    if text.isprintable() and ("\\" in text or '"' in text):
        return "'" + text.replace("'", "''") + "'"  # no escapes, so that regular expressions stay readable
    return json.dumps(text, ensure_ascii=not text.isprintable())


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether `value` is a finite number, and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def nearest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that `word` most likely was meant to be, or None."""
    folded = {candidate.casefold().replace("-", "_"): candidate for candidate in candidates}
    matches = difflib.get_close_matches(word.casefold().replace("-", "_"), folded, n=1, cutoff=0.6)
    return folded[matches[0]] if matches else None


def join_or(choices: Sequence[str]) -> str:
    """`a, b or c`."""
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"


def shorten_names(names: Sequence[str], limit: int = 8) -> str:
    """`a, b, c and 5 more`."""
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LIMIT else text[: _LIMIT - 3] + "..."
