"""pydantic's errors about a raw config -> our four-part problems in plain words, one a value, with its line.

Knows pydantic's error format and the sections; knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from frostline.config.expectation import (
    accepts_null,
    base_type,
    choices,
    default_text,
    is_choice,
    item_phrase,
    phrase,
)
from frostline.config.models import Config
from frostline.config.origin import COMMAND_LINE, Key, Origins, join_keys
from frostline.config.section import Expects, Section, subsection
from frostline.config.unknown_keys import snippet, unknown_key
from frostline.config.wording import flow, is_number, nearest, show
from frostline.config.yaml_scalars import resolve_plain
from frostline.errors import Problem

_WORDS = {"bf16": "bfloat16", "fp32": "float32", "fp16": "float16", "fp64": "float64", "half": "float16"}
_SYNONYMS = {"gpu": "cuda", **_WORDS, **{long: short for short, long in _WORDS.items() if short != "half"}}
_YAML_1_1_BOOLS = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
_EXAMPLES = {
    "recipe": "sequence_classification",
    "model": "sentence-transformers/all-MiniLM-L6-v2",
    "data": {"train": "train.jsonl"},
    "train": "train.jsonl",
    "metric": "accuracy",
    "mode": "max",
    "patience": 3,
    "select": "classifier",
    "at": {"epoch": 1},
    "source": "train.jsonl",
    "name_or_path": "bert-base-uncased",
}


def translate(error: ValidationError, data: Mapping[str, Any], origins: Origins) -> dict[tuple[Key, ...], Problem]:
    """One problem for each value of the canonical raw `data` that pydantic refused, by its keys."""
    found: dict[tuple[Key, ...], Problem] = {}
    for detail in error.errors(include_url=False, include_context=False):
        # An item missing in a list of fixed length is a wrong value of the list.
        kind = "too_short" if detail["type"] == "missing" and isinstance(detail["loc"][-1], int) else detail["type"]
        if kind == "fault":
            continue  # load_config asks the sections itself
        keys = _real_keys(detail["loc"], data, missing=kind == "missing")
        if keys in found:
            continue  # further branches of the same union
        section, field = _locate(keys, data)
        value = _value_at(data, keys)
        if kind == "missing":
            if _misspelled(section, keys, _value_at(data, keys[:-1])):
                continue  # the unknown key's problem says it all
            found[keys] = _missing(section, keys, _value_at(data, keys[:-1]), origins)
        elif kind == "extra_forbidden" or (field is None and keys):
            found[keys] = unknown_key(section, keys, value, origins.at(*keys))
        elif kind == "alias_conflict":
            found[keys] = _alias_conflict(section if field is None else _below(field), keys, value, origins)
        elif field is not None:
            found[keys] = _wrong_value(field, keys, value, origins, in_mapping=keys[-1] not in section.model_fields)
    return {keys: problem for keys, problem in found.items() if not _has_deeper(keys, found)}


def _has_deeper(keys: tuple[Key, ...], found: Mapping[tuple[Key, ...], Problem]) -> bool:
    # A mapping that one branch of a union refused as a whole, and another for something in it: the latter helps more.
    return any(len(other) > len(keys) and other[: len(keys)] == keys for other in found)


def _misspelled(section: type[Section], keys: tuple[Key, ...], parent: Any) -> bool:
    others = [str(key) for key in cast("Mapping[Any, Any]", parent)] if isinstance(parent, Mapping) else []
    unknown = [key for key in others if key not in section.model_fields]
    return any(nearest(key, [*section.model_fields, *section.aliases]) == keys[-1] for key in unknown)


def _real_keys(location: Sequence[Key], data: Any, missing: bool) -> tuple[Key, ...]:
    """The part of pydantic's location that are keys of the data: union branches are named there too."""
    keys: list[Key] = []
    for position, part in enumerate(location):
        is_last = position == len(location) - 1
        if isinstance(data, Mapping) and (part in data or (missing and is_last)):
            data = cast("Mapping[Any, Any]", data).get(part)
        elif isinstance(data, list) and isinstance(part, int) and part < len(cast("list[Any]", data)):
            data = cast("list[Any]", data)[part]
        else:
            continue
        keys.append(part)
    return tuple(keys)


def _value_at(data: Any, keys: tuple[Key, ...]) -> Any:
    for key in keys:
        if isinstance(data, Mapping):
            data = cast("Mapping[Any, Any]", data).get(key)
        elif isinstance(data, list) and isinstance(key, int):
            data = cast("list[Any]", data)[key]
        else:
            return None
    return data


def _locate(keys: tuple[Key, ...], data: Mapping[str, Any]) -> tuple[type[Section], FieldInfo | None]:
    """The section that holds the last name in `keys`, and that name's field (None where it has no such field)."""
    section: type[Section] = Config
    field: FieldInfo | None = None
    for depth, key in enumerate(keys):
        if isinstance(key, int):
            continue
        if field is not None:
            below = subsection(field)
            if below is None:
                return section, field  # inside a free mapping such as class_weights
            section = below[0].variant(_value_at(data, keys[:depth]))
        field = section.model_fields.get(key)
        if field is None:
            return section, None
    return section, field


def _below(field: FieldInfo) -> type[Section]:
    below = subsection(field)
    assert below is not None, "only sections have aliases"
    return below[0]


def _missing(section: type[Section], keys: tuple[Key, ...], parent: Any, origins: Origins) -> Problem:
    name = str(keys[-1])
    field = section.model_fields[name]
    given = ", ".join(str(key) for key in parent) if isinstance(parent, Mapping) and parent else "nothing"
    example = _EXAMPLES.get(name)
    inner = snippet((name,), example) if example is not None else f"{name}: ..."
    place = f"below `{join_keys(keys[:-1])}`" if keys[:-1] else "at the top level"
    where = str(origins.at(*keys[:-1])) if keys[:-1] else (origins.file or "the config")
    return Problem(
        f"`{join_keys(keys)}` is missing; given {'there' if keys[:-1] else 'at the top level'}: {given}",
        where,
        (field.description or "text") if phrase(field) == "text" else phrase(field),
        f"add {place}, for example: {inner}",
    )


def _alias_conflict(section: type[Section], keys: tuple[Key, ...], value: Any, origins: Origins) -> Problem:
    by_field: dict[str, list[str]] = {}
    for key in cast("Mapping[str, Any]", value):
        by_field.setdefault(section.aliases.get(key, key), []).append(key)
    field, names = next((field, names) for field, names in by_field.items() if len(names) > 1)
    shown = " and ".join(f"`{name}: {flow(value[name])}`" for name in names)
    return Problem(
        f"{shown} in `{join_keys(keys)}` mean the same setting",
        str(origins.at(*keys, names[-1])),
        f"`{field}` is the setting's name",
        f"keep one of the lines, as `{field}`",
    )


def _wrong_value(field: FieldInfo, keys: tuple[Key, ...], value: Any, origins: Origins, *, in_mapping: bool) -> Problem:
    what = f"`{join_keys(keys)}` cannot be {show(value)}"
    origin = origins.at(*keys)
    if isinstance(keys[-1], str) and in_mapping:
        fix = "write such a value, or remove the entry"
        return Problem(what, str(origin), item_phrase(field), fix)
    default = default_text(field)
    possible = phrase(field) if default is None else f"{phrase(field)}; default {default}"
    return Problem(what, str(origin), possible, _fix(field, keys, value, on_command_line=origin.file == COMMAND_LINE))


def _fix(field: FieldInfo, keys: tuple[Key, ...], value: Any, *, on_command_line: bool) -> str:
    named = keys[: max(position for position, key in enumerate(keys) if isinstance(key, str)) + 1]
    below = subsection(field)
    if below is not None and not any(isinstance(item, Expects) for item in field.metadata):
        is_item = below[1] and len(named) < len(keys)
        if below[1] and not (isinstance(value, Mapping) and not is_item):
            return _fix_list(below[0], str(named[-1]), value, is_item=is_item)
        return _fix_section(below[0], named, value, below[1], field.is_required(), on_command_line)
    options = choices(field)
    guess = _guess(field, options, value)
    if guess is not None:
        return f"write {_assignment(named, guess, on_command_line)}"
    otherwise = "" if field.is_required() else ", or remove it to get the default"
    if value is None and not accepts_null(field):
        return f"give `{join_keys(named)}` a value{otherwise}"
    return f"write {'one of them' if is_choice(field) else 'such a value'}{otherwise}"


def _fix_list(section: type[Section], name: str, value: Any, *, is_item: bool) -> str:
    """What to do about something that is no list of sections, or about an item that is no section."""
    example = f"{{{section.main_key}: {flow(_EXAMPLES.get(str(section.main_key), '...'))}, ...}}"
    if is_item and value is None:
        return "write its keys behind the dash, or remove the item"
    if value is None:
        return f"write its items below `{name}:`, each behind a dash, or remove the line"
    return f"write a mapping, such as {example}" if is_item else f"write a list, such as {name}: [{example}]"


def _fix_section(
    section: type[Section], keys: tuple[Key, ...], value: Any, is_list: bool, required: bool, on_command_line: bool
) -> str:
    name, main_key = str(keys[-1]), section.main_key
    if value is None:
        inside = "" if required else ", or remove the line"
        return f"indent its keys below `{name}:`{inside}"
    if is_list and isinstance(value, Mapping):
        return f"make it a list: {snippet((name,), [value])}"
    if main_key is not None and not is_list and isinstance(value, str | list):
        if on_command_line:
            return f"if you mean its {main_key}, write {join_keys((*keys, main_key))}={flow(value)}"
        return f"if you mean its {main_key}, write {name}: {{{main_key}: {flow(value)}}}"
    example = section.example or (f"{{{main_key}: ...}}" if main_key else None)
    return f"write a mapping, such as {name}: {example}" if example else "write a mapping"


def _assignment(keys: tuple[Key, ...], text: str, on_command_line: bool) -> str:
    return f"{join_keys(keys)}={text}" if on_command_line else f"`{keys[-1]}: {text}`"


def _guess(field: FieldInfo, options: tuple[str, ...], value: Any) -> str | None:
    """What the user most likely meant, as YAML; None where no value suggests itself."""
    if isinstance(value, bool | None) and options:
        for word in ("all",) if value is True else ("none", "never"):
            if word in options:
                return word
        return None
    kind = base_type(field)
    if isinstance(value, str):
        text = value.strip()
        if options:
            synonym = _SYNONYMS.get(text.lower())
            return synonym if synonym in options else nearest(text, options)
        if kind is bool:
            return _YAML_1_1_BOOLS.get(text.lower()) or (text.lower() if text.lower() in ("true", "false") else None)
        if text.lower() in ("none", "null", "nil") and accepts_null(field):
            return "null"
        return _number_in(text, kind)
    if kind is int and isinstance(value, float) and value.is_integer() and value >= 1:
        return str(int(value))
    if kind is bool and value in (0, 1):
        return "true" if value else "false"
    if kind is str and is_number(value):
        return f'"{value}"'
    return None


def _number_in(text: str, kind: type | None) -> str | None:
    if kind not in (int, float) or len(text) > 40:
        return None
    plain = resolve_plain(text.replace("_", "").replace(",", "").replace(" ", ""))
    if kind is int and isinstance(plain, float) and plain.is_integer():
        return str(int(plain))
    matches = isinstance(plain, int) if kind is int else is_number(plain)
    return flow(plain) if matches and not isinstance(plain, bool) else None
