"""Dotted overrides of the command line: `training.max_steps=10`, `freeze_config.freeze_modules[0]=bert`.

Answers where a value goes and what it is; must not know which keys a config has (the shorthands are handed in).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from frostline.config.origin import Key, join_keys
from frostline.config.yaml_scalars import resolve_plain
from frostline.config.yaml_tree import parse_yaml
from frostline.errors import ConfigError, Problem

_PART = re.compile(r"""(?:^|\.)(?:"(?P<quoted>[^"]+)"|(?P<name>[^.\[\]"=\s]+))|\[(?P<index>[0-9]{1,9})\]""")
_EXAMPLE = "KEY=VALUE, as in training.max_steps=10 or freeze_config.freeze_modules[0]=bert"


def apply_overrides(
    data: Mapping[str, Any],
    overrides: Iterable[str],
    shorthands: Mapping[tuple[Key, ...], str] | None = None,
    rename: Callable[[tuple[Key, ...], Mapping[str, Any]], tuple[Key, ...]] = lambda keys, data: keys,
) -> tuple[dict[str, Any], frozenset[tuple[Key, ...]]]:
    """A copy of `data` with each `KEY=VALUE` set, and the keys that were set. `data` is not changed.

    A value in quotes, `[...]` or `{...}` is YAML; any other text is one YAML 1.2 scalar, so `*.bias` and `a: b` need no
    quotes. A key inside a missing or null mapping makes the mapping; `[n]` replaces item n, or appends where n is the
    length. An override that would undo an earlier one is refused, as a key written twice in a file is.

    Args:
        data: plain data as of `load_yaml`.
        overrides: texts `KEY=VALUE`; a part of a key with a dot in it goes in double quotes.
        shorthands: where plain text stands for a mapping with one key, that key: `{("model",): "name_or_path"}`.
        rename: canonical keys for the keys of an override and the data so far, so that `peft.r=16` replaces `rank: 8`.

    Raises:
        ConfigError: malformed override, or a key that leads into a plain value or past a list; all of them together.
    """
    result: dict[str, Any] = _copy(data)
    applied: dict[tuple[Key, ...], str] = {}
    problems: list[Problem] = []
    for override in overrides:
        try:
            written, value = parse_override(override)
            keys = rename(written, result)
            undone = [earlier for place, earlier in applied.items() if place[: len(keys)] == keys]
            if undone:
                raise _set_twice(keys, [*undone, override])
            _set(result, keys, value, override, shorthands or {})
            applied[keys] = override
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError.from_problems(problems)
    return result, frozenset(applied)


def parse_override(override: str) -> tuple[tuple[Key, ...], Any]:
    """`"a.b[0]=1e-4"` -> `(("a", "b", 0), 0.0001)`.

    Raises:
        ConfigError: no `=`, a malformed key, no value, or a value that is not valid YAML.
    """
    key_text, equals, text = override.partition("=")
    where = f"command line: {override}"
    if not equals:
        raise ConfigError(
            f"the override `{override}` has no `=`",
            where=where,
            possible=_EXAMPLE,
            fix=f"write {override.lstrip('-') or 'KEY'}=VALUE",
        )
    if key_text.startswith("-"):
        raise ConfigError(
            f"the override `{override}` starts with a dash",
            where=where,
            possible=_EXAMPLE,
            fix=f"write {override.lstrip('-')}",
        )
    keys = _parse_keys(key_text.strip(), where)
    text = text.strip()
    if not text:
        raise ConfigError(
            f"the override `{override}` has no value",
            where=where,
            possible=_EXAMPLE,
            fix=f"write {key_text}=null for null, or '{key_text}=\"\"' for empty text",
        )
    if text[0] not in "[{\"'":
        try:
            return keys, resolve_plain(text)
        except ValueError:
            raise ConfigError(
                f"the number in the override of `{key_text}` is too long",
                where=where,
                fix="shorten it",
                possible="numbers of at most a few thousand digits",
            ) from None
    try:
        return keys, parse_yaml(text, "command line")[0]
    except ConfigError as error:  # its lines are those of the value alone
        raise ConfigError.from_problems(replace(problem, where=where) for problem in error.problems) from None


def _set_twice(keys: tuple[Key, ...], overrides: list[str]) -> ConfigError:
    return ConfigError(
        f"`{join_keys(keys)}` is set again, so that an earlier override would have no effect",
        where=f"command line: {' '.join(overrides)}",
        possible="one override of each key; of a whole section before those of its keys",
        fix="leave one of them out",
    )


def _parse_keys(text: str, where: str) -> tuple[Key, ...]:
    keys: list[Key] = []
    position = 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None or (not keys and match["index"] is not None):
            break
        keys.append(int(match["index"]) if match["index"] is not None else (match["quoted"] or match["name"]))
        position = match.end()
    if not keys or position < len(text):
        raise ConfigError(
            f"`{text}` is not a key",
            where=where,
            possible="names joined by dots, list items as [0], a name with dots in double quotes",
            fix=f"write {_EXAMPLE}",
        )
    return tuple(keys)


def _set(
    root: dict[str, Any], keys: tuple[Key, ...], value: Any, override: str, shorthands: Mapping[tuple[Key, ...], str]
) -> None:
    container: Any = root  # a dict with a text key, or a list with an index: _check_step sees to that
    for depth, key in enumerate(keys):
        _check_step(container, key, keys[:depth], override)
        child = _child(container, key)
        if depth == len(keys) - 1:
            container[key] = value
            return
        following = keys[depth + 1]
        if child is None:
            child = [] if isinstance(following, int) else {}
        elif not isinstance(child, dict | list) and isinstance(following, str) and keys[: depth + 1] in shorthands:
            child = {shorthands[keys[: depth + 1]]: child}
        container[key] = child
        container = child


def _child(container: Any, key: Any) -> Any:
    """The value there, None where there is none yet; a list grows by one for the index behind its end."""
    if isinstance(container, dict):
        return container.get(key)
    if key == len(container):
        container.append(None)
    return container[key]


def _check_step(container: Any, key: Key, before: tuple[Key, ...], override: str) -> None:
    if isinstance(container, dict) and isinstance(key, str):
        return
    where = f"command line: {override}"
    place = f"`{join_keys(before)}`"
    if isinstance(container, list) and isinstance(key, int):
        if key <= len(container):
            return
        raise ConfigError(
            f"{place} has no item [{key}]",
            where=where,
            possible=f"items [0] to [{len(container) - 1}]" if container else "the list is empty",
            fix=f"use an index up to {len(container)}; [{len(container)}] appends",
        )
    if isinstance(container, list):
        raise ConfigError(
            f"{place} is a list, and `{key}` is not an index",
            where=where,
            possible=f"{join_keys((*before, 0))} ... for its {len(container)} items",
            fix="write the index in brackets",
        )
    shape = "is a mapping" if isinstance(container, dict) else f"is the plain value {container!r}"
    raise ConfigError(
        f"{place} {shape}, so `{join_keys((*before, key))}` cannot be set",
        where=where,
        possible=f"the whole of {place}",
        fix=f"write {join_keys(before)}=VALUE",
    )


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(child) for key, child in value.items()}
    if isinstance(value, list):
        return [_copy(child) for child in value]
    return value
