"""Reads the text value that most kinds take, and compiles wildcards."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

WILDCARDS = "*?["


def require_text(value: Any, kind: str) -> str:
    """`value` if it is a non-empty string without outer blanks; else ValueError in plain words."""
    if not isinstance(value, str):
        raise ValueError(f"`{kind}` is {value!r}, but it takes text", "a string", "quote the value")
    if not value or value != value.strip():
        raise ValueError(f"`{kind}` is {value!r}, which names nothing", "a non-empty name", "write a name")
    return value


@lru_cache(maxsize=1024)
def wildcard(pattern: str) -> re.Pattern[str]:
    """Case-sensitive fnmatch pattern, compiled; use `fullmatch`."""
    return re.compile(fnmatch.translate(pattern))


@lru_cache(maxsize=1024)
def matcher(pattern: str) -> Callable[[str], object]:
    """True of the texts that `wildcard(pattern)` matches as a whole; quicker where its one `*` ends or begins it."""
    head, star, tail = pattern.partition("*")
    if star and not tail and not has_wildcard(head):
        return lambda text: text.startswith(head)
    if star and not head and not has_wildcard(tail):
        return lambda text: text.endswith(tail)
    return wildcard(pattern).fullmatch


def has_wildcard(text: str) -> bool:
    """Whether `text` holds a character with a meaning for fnmatch."""
    return any(character in text for character in WILDCARDS)
