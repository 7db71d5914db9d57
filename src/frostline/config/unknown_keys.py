"""The answer to a key that does not exist: another tool's key, a key of another section, or a slip of spelling.

Knows the sections and the table of foreign keys; knows nothing of YAML.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from frostline.config.expectation import join_keys_of
from frostline.config.foreign_keys import FOREIGN_KEYS, ForeignKey
from frostline.config.models import Config
from frostline.config.origin import Key, Origin, join_keys
from frostline.config.section import Section, subsection
from frostline.config.wording import flow, join_or, nearest, show
from frostline.errors import Problem


def unknown_key(section: type[Section], keys: tuple[Key, ...], value: Any, origin: Origin) -> Problem:
    """The problem of the unknown key `keys[-1]` with `value` in `section`."""
    key = str(keys[-1])
    foreign = FOREIGN_KEYS.get(key) or FOREIGN_KEYS.get(key.replace("-", "_"))
    if foreign is not None:
        return _foreign(foreign, section, keys, value, origin)
    what = f"unknown key `{join_keys(keys)}`"
    here = f"the keys here are {join_keys_of(section)}"
    names = [*section.model_fields, *section.aliases]
    near = nearest(key, names)
    elsewhere = homes(key)
    if elsewhere and (near is None or near.replace("_", "") != key.replace("_", "")):
        home = join_keys(elsewhere[0])
        also = "".join(f", or `{join_keys(other)}`" for other in elsewhere[1:3])
        return Problem(
            what, str(origin), f"`{key}` belongs elsewhere: `{home}`{also}", f"move it: {snippet(elsewhere[0], value)}"
        )
    if near is not None:
        near = section.aliases.get(near, near)
        return Problem(what, str(origin), f"did you mean `{near}`? {here}", f"rename `{key}` to `{near}`")
    far = _nearest_anywhere(key)
    if far is not None:
        return Problem(what, str(origin), f"did you mean `{join_keys(far)}`? {here}", f"move it: {snippet(far, value)}")
    return Problem(what, str(origin), here, f"remove `{key}`, or write one of these keys")


def homes(key: str) -> list[tuple[Key, ...]]:
    """Where a key of that name, or of that alias, exists: outer places first."""
    found = [path for path, section, name in _all_keys() if name == key or section.aliases.get(key) == name]
    return sorted(found, key=len)


def snippet(keys: tuple[Key, ...], value: Any) -> str:
    """`("data", "max_length"), 512` -> `data: {max_length: 512}`."""
    text = flow(value)
    for key in reversed(keys[1:]):
        text = f"{{{key}: {text}}}"
    return f"{keys[0]}: {text}"


def _foreign(foreign: ForeignKey, section: type[Section], keys: tuple[Key, ...], value: Any, origin: Origin) -> Problem:
    key = str(keys[-1])
    tools = join_or(foreign.tools.split(", ")).replace(" or ", " and ")
    what = f"`{key}` is a key of {tools}, not of Frostline (its value is {show(value)})"
    if foreign.ours is None:
        return Problem(
            what, str(origin), "no key of Frostline: nothing needs to be set", foreign.note or f"remove `{key}`"
        )
    note = f"; {foreign.note}" if foreign.note else ""
    converted = foreign.convert(value) if foreign.convert is not None else None
    ours = tuple(foreign.ours.split("."))
    if converted is not None and len(keys) > 2 and ours[-1] in section.model_fields:
        # In an entry of a list, as a phase or a parameter group, that has a key of its own for it.
        place = f"`{ours[-1]}` here; `{foreign.ours}` is that of the whole run"
        return Problem(what, str(origin), f"Frostline's key is {place}{note}", f"rename `{key}` to `{ours[-1]}`")
    if converted is None and value is False and foreign.convert is not None:
        fix = f"remove `{key}`: false is what happens without it"
    elif converted is None:
        fix = f"set `{foreign.ours}` instead"
    else:
        fix = f"write {snippet(ours, converted)}"
        if isinstance(converted, list):
            fix += ", or add it to the list that is there"
    return Problem(what, str(origin), f"Frostline's key is `{foreign.ours}`{note}", fix)


def _nearest_anywhere(key: str) -> tuple[Key, ...] | None:
    by_name: dict[str, tuple[Key, ...]] = {}
    for path, _, name in sorted(_all_keys(), key=lambda entry: len(entry[0])):
        by_name.setdefault(name, path)
    near = nearest(key, by_name)
    return None if near is None or len(key) < 4 else by_name[near]


def _all_keys(
    section: type[Section] = Config, keys: tuple[Key, ...] = ()
) -> Iterator[tuple[tuple[Key, ...], type[Section], str]]:
    for name, field in section.model_fields.items():
        yield (*keys, name), section, name
        below = subsection(field)
        if below is not None and not below[1]:
            yield from _all_keys(below[0], (*keys, name))
