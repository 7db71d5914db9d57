"""The base class of every config section: strict, frozen, and able to say what is wrong with a raw mapping.

Knows nothing of particular keys, of files or of lines.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from frostline.config.origin import Key


@dataclass(frozen=True)
class Fault:
    """A fault that types alone cannot find, at `keys` below the section."""

    keys: tuple[Key, ...]
    what: str
    possible: str
    fix: str


@dataclass(frozen=True)
class Expects:
    """Field metadata: what the value must be, in words, where the type does not say it well.

    Attributes:
        say: completes "possible: ..."; a function where that is known only when a message is made.
        words: the fixed words among the values, where the type does not name them; likewise.
    """

    say: str | Callable[[], str]
    words: tuple[str, ...] | Callable[[], tuple[str, ...]] = ()

    @property
    def phrase(self) -> str:
        """What the value must be."""
        return self.say if isinstance(self.say, str) else self.say()

    @property
    def options(self) -> tuple[str, ...]:
        """The fixed words among the values."""
        return self.words if isinstance(self.words, tuple) else self.words()


class Section(BaseModel):
    """One mapping of the config. Unknown keys are errors; text is never read as a number; values cannot be changed."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    aliases: ClassVar[Mapping[str, str]] = {}
    """Other names that are read, and the field that each means."""
    value_aliases: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    """For a field, other words that are read, and the value that each means."""
    shorthand: ClassVar[str | None] = None
    """The field that plain text in place of the mapping means."""
    main_key: ClassVar[str | None] = None
    """The key to show to someone who wrote a plain value where this mapping belongs."""
    example: ClassVar[str | None] = None
    """What to show there instead, where one key does not say enough."""

    @classmethod
    def variant(cls, given: Any) -> type[Section]:
        """The section that `given` is read as in place of this one: where a key decides which others there are."""
        return cls

    @classmethod
    def faults(cls, given: Mapping[str, Any]) -> Iterator[Fault]:
        """Faults of the raw values under canonical names; must bear values of any type. Overridden by sections."""
        return iter(())

    @model_validator(mode="before")
    @classmethod
    def _canonical(cls, value: Any) -> Any:
        canonical = canonical_section(cls, value)
        for alias, name in cls.aliases.items():
            if isinstance(canonical, Mapping) and alias in canonical:
                raise PydanticCustomError(
                    "alias_conflict", "{alias} and {name} mean the same", {"alias": alias, "name": name}
                )
        return canonical

    @model_validator(mode="after")
    def _no_faults(self) -> typing.Self:
        # Direct construction in Python; load_config asks `faults` itself, so that one error hides no other.
        for fault in self.faults(self.model_dump(exclude_unset=True)):
            raise PydanticCustomError("fault", "{what}", {"what": fault.what})
        return self


def never_null(schema: dict[str, Any]) -> None:
    """For `json_schema_extra` of a field that is None where it is omitted, but that nobody may set to null."""
    schema.pop("default", None)
    options: list[dict[str, Any]] = schema.get("anyOf", [])
    written = [option for option in options if option.get("type") != "null"]
    if len(written) == 1 and len(options) == 2:
        schema.pop("anyOf")
        schema.update(written[0] | {key: value for key, value in schema.items() if key == "description"})


def canonical_section(section: type[Section], value: Any) -> Any:
    """`value` with the shorthand spelled out and aliases replaced; two names for one field are left as they are."""
    if isinstance(value, str) and section.shorthand is not None:
        return {section.shorthand: value}
    if not isinstance(value, Mapping):
        return value
    given: Mapping[Any, Any] = typing.cast("Mapping[Any, Any]", value)
    names = [section.aliases.get(key, key) for key in given]
    return {
        key if names.count(name) > 1 else name: _canonical_value(section, name, child)
        for (key, child), name in zip(given.items(), names, strict=True)
    }


def _canonical_value(section: type[Section], name: Any, value: Any) -> Any:
    words = section.value_aliases.get(name) if isinstance(name, str) else None
    return words.get(value, value) if words is not None and isinstance(value, str) else value


def subsection(field: FieldInfo) -> tuple[type[Section], bool] | None:
    """The section class that values of `field` are read as, and whether the field is a list of them."""
    found = _find_section(field.annotation)
    return None if found is None else (found, typing.get_origin(field.annotation) is tuple)


def _find_section(annotation: Any) -> type[Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for part in typing.get_args(annotation) if (found := _find_section(part))), None)


def walk_sections(
    section: type[Section], value: Any, keys: tuple[Key, ...] = ()
) -> Iterator[tuple[type[Section], Mapping[str, Any], tuple[Key, ...]]]:
    """Every mapping of the raw `value` that is read as a section: its class, itself, its keys. Outermost first."""
    if not isinstance(value, Mapping):
        return
    given: Mapping[str, Any] = typing.cast("Mapping[str, Any]", value)
    section = section.variant(given)
    yield section, given, keys
    for name, field in section.model_fields.items():
        below = subsection(field)
        if below is None or name not in given:
            continue
        child_section, is_list = below
        child: Any = given[name]
        if not is_list:
            yield from walk_sections(child_section, child, (*keys, name))
        elif isinstance(child, list):
            for index, item in enumerate(typing.cast("list[Any]", child)):
                yield from walk_sections(child_section, item, (*keys, name, index))
