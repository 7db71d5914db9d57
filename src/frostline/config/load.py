"""A config file or mapping, with overrides -> a checked `Config`, or one error that lists every problem with its line.

Must not know models, data or the grammar of selectors: those checks are handed in.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from frostline.config.canonical import canonical_keys, canonicalize, shorthand_keys
from frostline.config.models import Config
from frostline.config.origin import Key, Origins
from frostline.config.overrides import apply_overrides
from frostline.config.problems import translate
from frostline.config.section import walk_sections
from frostline.config.wording import show
from frostline.config.yaml_file import load_yaml
from frostline.errors import ConfigError, Problem

Check = Callable[[dict[str, Any], Origins], Sequence[Problem]]
"""Looks at canonical raw data without the values that are already known to be wrong; returns what it finds."""


@dataclass(frozen=True)
class LoadedConfig:
    """A config that passed every check.

    Attributes:
        config: the typed values, defaults filled in.
        origins: file, line or command line of every value of `data`.
        data: what was given, under canonical names (aliases renamed, shorthands spelled out), without defaults.
        path: the file; None for a mapping.
    """

    config: Config
    origins: Origins
    data: dict[str, Any]
    path: Path | None

    @property
    def run_folder(self) -> Path:
        """`output_dir` (`~` is the home folder), or `runs/NAME`, named like the config file (`run` for a mapping)."""
        if self.config.output_dir is not None:
            return Path(os.path.expanduser(self.config.output_dir))
        return Path("runs") / ("run" if self.path is None else self.path.stem)


def load_config(
    source: str | os.PathLike[str] | Mapping[str, Any],
    overrides: Iterable[str] = (),
    checks: Iterable[Check] = (),
) -> LoadedConfig:
    """Reads, overrides and checks a config. Relative paths in it stay as given: they start at the current directory.

    Args:
        source: a YAML file, or the same as a Python mapping (not changed).
        overrides: texts such as `training.max_steps=10`, applied in order.
        checks: further checks; their problems join the same error.

    Raises:
        ConfigError: anything wrong with the file, the overrides or the values; all problems of one stage together.
    """
    if isinstance(source, Mapping):
        path, origins, raw = None, Origins(), _plain_mapping(source)
    else:
        path = Path(source)
        document = load_yaml(path)
        origins, raw = document.origins, document.data
    # Canonical names first, so that an override replaces the setting under whichever name the file gives it.
    raw, origins = canonicalize(Config, raw, origins)
    raw, set_keys = apply_overrides(raw, overrides, shorthand_keys(Config), partial(canonical_keys, Config))
    data, origins = canonicalize(Config, raw, _with_overrides(origins, set_keys))

    config: Config | None = None
    found: dict[tuple[Key, ...], Problem] = {}
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        found = translate(error, data, origins)
    faults = _faults(data, origins)
    problems = list((found | faults).items())  # a section knows more about its value than its type does
    sound = _without(data, found)
    places = {problem.where for _, problem in problems}
    for check in checks:
        problems += [((), problem) for problem in check(sound, origins) if problem.where not in places]
    if problems or config is None:
        raise ConfigError.from_problems(_in_file_order(problems, origins))
    return LoadedConfig(config, origins, data, path)


def _faults(data: dict[str, Any], origins: Origins) -> dict[tuple[Key, ...], Problem]:
    found: dict[tuple[Key, ...], Problem] = {}
    for section, given, keys in walk_sections(Config, data):
        for fault in section.faults(given):
            full = (*keys, *fault.keys)
            found.setdefault(full, Problem(fault.what, str(origins.at(*full)), fault.possible, fault.fix))
    return found


def _with_overrides(origins: Origins, keys: frozenset[tuple[Key, ...]]) -> Origins:
    # A line at or below an overridden key no longer says where the value stands.
    lines = {place: line for place, line in origins.lines.items() if not any(place[: len(key)] == key for key in keys)}
    return replace(origins, lines=lines, overrides=origins.overrides | keys)


def _without(data: dict[str, Any], wrong: Iterable[tuple[Key, ...]]) -> dict[str, Any]:
    """`data` without the values at `wrong`. List items stay: removing one would shift the lines of the others."""
    prefixes = frozenset(keys for keys in wrong if keys and isinstance(keys[-1], str))
    return cast("dict[str, Any]", _pruned(data, (), prefixes))


def _pruned(value: Any, keys: tuple[Key, ...], wrong: frozenset[tuple[Key, ...]]) -> Any:
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {key: _pruned(child, (*keys, key), wrong) for key, child in items if (*keys, key) not in wrong}
    return value


def _in_file_order(problems: list[tuple[tuple[Key, ...], Problem]], origins: Origins) -> list[Problem]:
    def line(entry: tuple[tuple[Key, ...], Problem]) -> float:
        keys, _ = entry
        found = origins.at(*keys).line if keys else None
        return float("inf") if found is None else found

    return [problem for _, problem in sorted(problems, key=line)]


def _plain_mapping(source: Mapping[Any, Any]) -> dict[str, Any]:
    problems: list[Problem] = []
    data = _plain(source, "config", problems)
    if problems:
        raise ConfigError.from_problems(problems)
    return data


def _plain(value: Any, place: str, problems: list[Problem]) -> Any:
    """Mappings as dicts with text keys, tuples as lists, paths as text; anything else as it is."""
    if isinstance(value, Mapping):
        result: dict[str, Any] = {}
        for key, child in cast("Mapping[Any, Any]", value).items():
            text = str(key)
            if not isinstance(key, str | int) or text in result:
                reason = "is there twice" if text in result else "is not text"
                problems.append(
                    Problem(
                        f"the key {show(key)} of {place} {reason}",
                        "argument",
                        "keys are text",
                        "write each key once, as text",
                    )
                )
                continue
            result[text] = _plain(child, f"{place}.{text}", problems)
        return result
    if isinstance(value, list | tuple):
        return [_plain(item, place, problems) for item in cast("Sequence[Any]", value)]
    return os.fspath(value) if isinstance(value, os.PathLike) else value
