"""Parses a `freeze_config` block into rules. Knows the keys of the block; which modules they hit is decided later."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from frostline.config.origin import Origin, Origins
from frostline.errors import ConfigError, Problem, SelectorError
from frostline.selectors import Selector, parse_selectors

_KEYS = ("freeze_modules", "unfreeze_modules", "frozen_mode", "allow_frozen_new")
_ELSEWHERE = {
    "freeze_embeddings": 'freeze_modules: ["embed_tokens"] (or the name of the embedding in this model)',
    "freeze_backbone": "freeze_modules: [NAME_OF_THE_BACKBONE]",
    "freeze_lm_head": 'freeze_modules: ["lm_head"] (or the name of the head in this model)',
    "freeze_vision_tower": 'freeze_modules: ["vision*"] (or the name of the tower in this model)',
    "freeze_audio_tower": 'freeze_modules: ["audio*"] (or the name of the tower in this model)',
    "freeze_language_model": 'freeze_modules: ["language_model"] (or its name in this model)',
    "unfrozen_parameters": 'unfreeze_modules: [{param: "PATTERN"}]',
    "phases": "one set for the whole run; phases are not supported yet",
}


@dataclass(frozen=True)
class FreezeRules:
    """The block, parsed. `()` in a list means that nothing is selected.

    Attributes:
        freeze, unfreeze: selectors in the order written.
        frozen_mode: `eval` keeps wholly frozen subtrees in evaluation mode, `train` lets them follow the model.
        allow_frozen_new: freezing a parameter that the base files do not hold is meant.
    """

    freeze: tuple[Selector, ...] = ()
    unfreeze: tuple[Selector, ...] = ()
    frozen_mode: str = "eval"
    allow_frozen_new: bool = False
    origin: Origin = field(default_factory=Origin, compare=False)


def parse_freeze_config(config: Mapping[str, Any] | None, origins: Origins | None = None) -> FreezeRules:
    """Rules of a `freeze_config` mapping (None: no block). `origins` locates its keys for messages.

    Raises:
        ConfigError: all faults of the block at once.
    """
    origins = origins or Origins(prefix=("freeze_config",))
    if config is None:
        return FreezeRules(origin=origins.at())
    problems: list[Problem] = []
    num_malformed = 0  # problems that are faults of selectors
    if not isinstance(config, Mapping):
        raise ConfigError(
            f"freeze_config is {config!r}, but it takes a mapping",
            where=origins.at(),
            possible="keys: " + ", ".join(_KEYS),
            fix="write `freeze_modules:` below it, or remove the block",
        )
    for key in config:
        if key not in _KEYS:
            problems.append(_unknown_key(str(key), origins))
    lists: dict[str, tuple[Selector, ...]] = {}
    for key in ("freeze_modules", "unfreeze_modules"):
        if key in config:
            try:
                lists[key] = parse_selectors(config[key], origins.below(key), rows=True)
            except SelectorError as error:
                problems.extend(error.problems)
                num_malformed += len(error.problems)
    mode = config.get("frozen_mode", "eval")
    if mode not in ("eval", "train"):
        problems.append(
            Problem(f"frozen_mode is {mode!r}", str(origins.at("frozen_mode")), "eval or train", "correct the value")
        )
    allow = config.get("allow_frozen_new", False)
    if not isinstance(allow, bool):
        problems.append(
            Problem(
                f"allow_frozen_new is {allow!r}",
                str(origins.at("allow_frozen_new")),
                "true or false",
                "correct the value",
            )
        )
    if problems:
        raise (SelectorError if len(problems) == num_malformed else ConfigError).from_problems(problems)
    return FreezeRules(
        lists.get("freeze_modules", ()), lists.get("unfreeze_modules", ()), str(mode), bool(allow), origins.at()
    )


def _unknown_key(key: str, origins: Origins) -> Problem:
    hint = _ELSEWHERE.get(key)
    near = difflib.get_close_matches(key, _KEYS, n=1)
    return Problem(
        f"unknown key `{key}` in freeze_config",
        str(origins.at(key)),
        f"here it is written: {hint}" if hint else f"nearest: {near[0]}" if near else "keys: " + ", ".join(_KEYS),
        "replace the key",
    )
