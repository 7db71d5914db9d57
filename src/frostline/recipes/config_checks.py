"""Reads a config with every check: also those that its models cannot make, of selectors and of paths.

They are handed to `load_config`, so that what they find is reported with everything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from frostline.config.load import LoadedConfig, load_config
from frostline.config.origin import Key, Origins
from frostline.config.wording import show
from frostline.errors import ConfigError, Problem
from frostline.selectors import OF_FROZEN, OF_TRAINED, selector_problems

if TYPE_CHECKING:
    import os

MAX_NAME_BYTES = 255  # of one part of a path, on the file systems of Linux, macOS and Windows
_PATHS = (
    ("model", "name_or_path"),
    ("tokenizer", "name_or_path"),
    ("data", "train", "source"),
    ("data", "validation", "source"),
    ("data", "test", "source"),
    ("output_dir",),
)


def read_config(source: str | os.PathLike[str] | Mapping[str, Any], overrides: Iterable[str] = ()) -> LoadedConfig:
    """The checked config; the grammar of its selectors is checked with everything else, all problems at once.

    Raises:
        ConfigError: with every problem and its line.
    """
    return load_config(source, overrides, checks=(check_selectors, check_paths, check_method))


def check_selectors(data: dict[str, Any], origins: Origins) -> list[Problem]:
    """Faults in the grammar of every selector that a config holds."""
    places: list[tuple[Any, Origins, frozenset[str]]] = []
    freeze = data.get("freeze_config")
    if isinstance(freeze, dict):
        phases = freeze.get("phases")
        blocks: list[tuple[Any, Origins]] = [
            (freeze, origins.below("freeze_config")),
            *(
                (phase, origins.below("freeze_config", "phases", index))
                for index, phase in enumerate(phases if isinstance(phases, list) else [])
            ),
        ]
        places += [
            (block[key], at.below(key), also)
            for block, at in blocks
            for key, also in (("freeze_modules", OF_FROZEN), ("unfreeze_modules", OF_TRAINED))
            if isinstance(block, dict) and key in block
        ]
    peft = data.get("peft")
    if isinstance(peft, dict):
        places += [
            (peft[key], origins.below("peft", key), also)
            for key, also in (("target_modules", OF_TRAINED), ("exclude_modules", frozenset[str]()))
            if key in peft and peft[key] != "all-linear"
        ]
    optimizer = data.get("optimizer")
    groups = optimizer.get("groups") if isinstance(optimizer, dict) else None
    for index, group in enumerate(groups if isinstance(groups, list) else []):
        if isinstance(group, dict) and "select" in group:
            places.append((group["select"], origins.below("optimizer", "groups", index, "select"), frozenset()))
    return [problem for value, at, also in places for problem in selector_problems(value, at, also=also)]


def check_method(data: dict[str, Any], origins: Origins) -> list[Problem]:
    """What a PEFT method of another package says of the keys that are its own."""
    from frostline.config.models import is_of_another_method

    block: dict[str, Any] = data.get("peft") or {}
    if not is_of_another_method(block):
        return []
    from frostline.adapters import parse_method  # brings torch, which the built-in method's check does without

    try:
        parse_method(block, origins.below("peft"))
    except ConfigError as error:
        return list(error.problems)
    return []


def check_paths(data: dict[str, Any], origins: Origins) -> list[Problem]:
    """Texts with the character U+0000 anywhere, and paths with a part that no file system takes."""
    problems = [
        Problem(
            f"the text {value!r} holds the character U+0000"
            if len(value) < 80
            else "a text holds the character U+0000",
            str(origins.at(*keys)),
            "text without it",
            "remove the \\0",
        )
        for keys, value in _texts(data, ())
        if "\0" in value
    ]
    for keys, value in _texts(data, ()):
        longest = max(value.split("/"), key=len)
        if keys in _PATHS and len(longest.encode(errors="replace")) > MAX_NAME_BYTES:
            problems.append(
                Problem(
                    f"a file name of {len(longest):,} characters: {show(longest)}",
                    str(origins.at(*keys)),
                    f"at most {MAX_NAME_BYTES} bytes between two slashes",
                    "shorten it",
                )
            )
    return problems


def _texts(value: Any, keys: tuple[Key, ...]) -> Iterator[tuple[tuple[Key, ...], str]]:
    if isinstance(value, str):
        yield keys, value
    elif isinstance(value, dict | list):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts(child, (*keys, key))
