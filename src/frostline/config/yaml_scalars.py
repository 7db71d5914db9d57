"""What a YAML 1.2 scalar means (core schema): `off` and `1:8` are text, `1e-4` is a number, `017` is seventeen.

Knows nothing of files, lines or config keys.
"""

from __future__ import annotations

import re

Scalar = str | int | float | bool | None

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE"})
_FALSE = frozenset({"false", "False", "FALSE"})
_DECIMAL = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITY = re.compile(r"[-+]?\.(inf|Inf|INF)")
_NOT_A_NUMBER = frozenset({".nan", ".NaN", ".NAN"})

_MAX_DIGITS = 1000  # below Python's own limit

_PREFIX = "tag:yaml.org,2002:"
_TAGS: dict[str, tuple[type, ...]] = {
    f"{_PREFIX}null": (type(None),),
    f"{_PREFIX}bool": (bool,),
    f"{_PREFIX}int": (int,),
    f"{_PREFIX}float": (float, int),
}


def resolve_plain(text: str) -> Scalar:
    """Value of an unquoted scalar.

    Raises:
        ValueError: a whole number of more than 1000 digits.
    """
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _DECIMAL.fullmatch(text):
        if len(text) > _MAX_DIGITS:
            raise ValueError(f"a whole number of {len(text)} digits")
        return int(text)
    if _OCTAL.fullmatch(text):
        return int(text[2:], 8)
    if _HEXADECIMAL.fullmatch(text):
        return int(text[2:], 16)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INFINITY.fullmatch(text):
        return float("-inf") if text.startswith("-") else float("inf")
    if text in _NOT_A_NUMBER:
        return float("nan")
    return text


def resolve_tagged(text: str, tag: str) -> Scalar:
    """Value of a scalar with an explicit tag such as `!!str`.

    Raises:
        ValueError: the tag is not of the core schema, or the text is no such value.
    """
    if tag in (f"{_PREFIX}str", "!"):
        return text
    if tag not in _TAGS:
        raise ValueError(f"the tag `{short_tag(tag)}` is not one of !!str, !!int, !!float, !!bool, !!null")
    value = resolve_plain(text)
    kinds = _TAGS[tag]
    if type(value) not in kinds:
        raise ValueError(f"`{text}` is no {short_tag(tag)}")
    return float(value) if float in kinds and isinstance(value, int) else value


def short_tag(tag: str) -> str:
    """`tag:yaml.org,2002:str` -> `!!str`."""
    return f"!!{tag.removeprefix(_PREFIX)}" if tag.startswith(_PREFIX) else tag
