"""Raw config data under canonical names: shorthands spelled out, aliases renamed, the lines moved along.

Knows sections only through their `aliases` and `shorthand`; reports nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

from frostline.config.origin import Key, Origins
from frostline.config.section import Section, canonical_section, subsection


def canonicalize(section: type[Section], data: Mapping[str, Any], origins: Origins) -> tuple[dict[str, Any], Origins]:
    """Copies of `data` and `origins` in which every key of `section` has its canonical name."""
    renames: dict[tuple[Key, ...], tuple[Key, ...]] = {}
    canonical = _canonicalize(section, data, (), (), renames)
    lines = {_renamed(keys, renames): line for keys, line in origins.lines.items()}
    overrides = frozenset(_renamed(keys, renames) for keys in origins.overrides)
    return canonical, dataclasses.replace(origins, lines=lines, overrides=overrides)


def canonical_keys(section: type[Section], keys: tuple[Key, ...], data: Mapping[str, Any]) -> tuple[Key, ...]:
    """`("peft", "r")` -> `("peft", "rank")` where `data` is read so; unknown keys stay."""
    below: type[Section] | None = section
    result: list[Key] = []
    value: Any = data
    for key in keys:
        if below is not None and isinstance(key, str):
            below = below.variant(value)
            key = below.aliases.get(key, key)
            field = below.model_fields.get(key)
            found = None if field is None else subsection(field)
            below = None if found is None else found[0]
            value = cast("Mapping[str, Any]", value).get(key) if isinstance(value, Mapping) else None
        result.append(key)
    return tuple(result)


def shorthand_keys(section: type[Section], keys: tuple[Key, ...] = ()) -> dict[tuple[Key, ...], str]:
    """Where plain text may stand for a mapping, and for which of its keys: `{("model",): "name_or_path", ...}`."""
    found: dict[tuple[Key, ...], str] = {}
    for name, field in section.model_fields.items():
        below = subsection(field)
        if below is None or below[1]:
            continue
        if below[0].shorthand is not None:
            found[(*keys, name)] = below[0].shorthand
        found |= shorthand_keys(below[0], (*keys, name))
    return found


def _canonicalize(
    section: type[Section],
    value: Any,
    written: tuple[Key, ...],
    keys: tuple[Key, ...],
    renames: dict[tuple[Key, ...], tuple[Key, ...]],
) -> Any:
    section = section.variant(value)
    canonical = canonical_section(section, value)
    if not isinstance(canonical, dict):
        return value
    was_mapping = isinstance(value, Mapping)
    # canonical_section keeps the order, so the two sequences of names belong together.
    old_names = list(value) if was_mapping else list(canonical)
    result: dict[Any, Any] = {}
    for old, (name, child) in zip(old_names, canonical.items(), strict=True):
        if was_mapping and old != name:
            renames[(*written, old)] = (*keys, name)
        field = section.model_fields.get(name) if isinstance(name, str) else None
        below = None if field is None else subsection(field)
        if below is None:
            result[name] = child
        elif not below[1]:
            result[name] = _canonicalize(below[0], child, (*written, old), (*keys, name), renames)
        elif isinstance(child, list):
            result[name] = [
                _canonicalize(below[0], item, (*written, old, index), (*keys, name, index), renames)
                for index, item in enumerate(child)
            ]
        else:
            result[name] = child
    return result


def _renamed(keys: tuple[Key, ...], renames: Mapping[tuple[Key, ...], tuple[Key, ...]]) -> tuple[Key, ...]:
    for length in range(len(keys), 0, -1):
        if keys[:length] in renames:
            return renames[keys[:length]] + keys[length:]
    return keys
