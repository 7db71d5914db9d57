"""What a field accepts, in words, made from its type and bounds: `a whole number of at least 1, or null`.

Knows pydantic's fields; knows no particular section, value or line.
"""

from __future__ import annotations

import itertools
import types
import typing
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Union

import annotated_types
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from frostline.config.section import Expects, Section, never_null
from frostline.config.wording import flow, join_or

_UNIONS = (Union, types.UnionType)


def phrase(field: FieldInfo) -> str:
    """What values of `field` are, in words."""
    words = _phrase(field.annotation, field.metadata)
    return words if accepts_null(field) else words.removesuffix(", or null")


def choices(field: FieldInfo) -> tuple[str, ...]:
    """The fixed words that `field` accepts."""
    for item in field.metadata:
        if isinstance(item, Expects) and item.options:
            return item.options
    return _literals(field.annotation)


def is_choice(field: FieldInfo) -> bool:
    """Whether `field` accepts nothing but fixed words, null aside."""
    parts = typing.get_args(field.annotation) if typing.get_origin(field.annotation) in _UNIONS else (field.annotation,)
    return all(typing.get_origin(part) is Literal for part in parts if part is not type(None))


def item_phrase(field: FieldInfo) -> str:
    """What the values inside a mapping that `field` accepts are, in words."""
    for part in (field.annotation, *typing.get_args(field.annotation)):
        if typing.get_origin(part) is dict:
            return _phrase(typing.get_args(part)[1], ())
    return phrase(field)


def default_text(field: FieldInfo) -> str | None:
    """The default of `field` as YAML, or None where it has none worth showing."""
    default = field.default
    if default is PydanticUndefined or default is None or isinstance(default, Section) or default == ():
        return None
    return flow(default)


def accepts_null(field: FieldInfo) -> bool:
    """Whether null is a value of `field`."""
    return type(None) in typing.get_args(field.annotation) and field.json_schema_extra is not never_null


def base_type(field: FieldInfo) -> type | None:
    """`int`, `float`, `bool` or `str` for a plain field (null aside), else None."""
    parts = [part for part in (*typing.get_args(field.annotation), field.annotation) if part in (int, float, bool, str)]
    return parts[0] if len(parts) == 1 else None


def _phrase(annotation: Any, metadata: Sequence[Any]) -> str:
    for item in metadata:
        if isinstance(item, Expects):
            return item.phrase
    if typing.get_origin(annotation) is Annotated:
        inner, *more = typing.get_args(annotation)
        return _phrase(inner, more)
    if typing.get_origin(annotation) in _UNIONS:
        parts = [part for part in typing.get_args(annotation) if part is not type(None)]
        words = [_phrase(part, metadata) for part in parts]
        if len(parts) < len(typing.get_args(annotation)):
            words.append("null")
        return ", or ".join(words)
    if typing.get_origin(annotation) is Literal:
        return join_or([str(choice) for choice in typing.get_args(annotation)])
    if isinstance(annotation, type) and issubclass(annotation, Section):
        text = f"text (its {annotation.shorthand}) or " if annotation.shorthand else ""
        return f"{text}a mapping with the keys {join_keys_of(annotation)}"
    if typing.get_origin(annotation) is tuple:
        return f"a list, each item {_phrase(typing.get_args(annotation)[0], ())}"
    bounds = _bounds(metadata)
    if annotation is bool:
        return "true or false"
    if annotation is int:
        return f"a whole number{bounds}"
    if annotation is float:
        return f"a number{bounds}"
    if annotation is str:
        return "text"
    return "another value"


def join_keys_of(section: type[Section]) -> str:
    """All keys of a section, in their order."""
    return ", ".join(section.model_fields)


def _bounds(metadata: Sequence[Any]) -> str:
    low, high = "", ""
    # Inside another type, the bounds are still wrapped in a FieldInfo.
    for item in itertools.chain(*(part.metadata if isinstance(part, FieldInfo) else [part] for part in metadata)):
        if isinstance(item, annotated_types.Ge):
            low = f"of at least {item.ge}"
        elif isinstance(item, annotated_types.Gt):
            low = f"above {item.gt}"
        elif isinstance(item, annotated_types.Lt):
            high = "below 2**63" if item.lt == 2**63 else f"below {item.lt}"
        elif isinstance(item, annotated_types.Le):
            high = f"of at most {item.le}"
    both = " and ".join(part for part in (low, high) if part)
    return f" {both}" if both else ""


def _literals(annotation: Any) -> tuple[str, ...]:
    if typing.get_origin(annotation) is Literal:
        return tuple(str(choice) for choice in typing.get_args(annotation))
    found: list[str] = []
    for part in typing.get_args(annotation):
        found += _literals(part)
    return tuple(found)
