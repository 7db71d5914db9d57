"""Parses a `freeze_config` block into rules. Knows the keys of the block; which modules they hit is decided later."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from frostline.config.foreign_keys import FOREIGN_KEYS
from frostline.config.origin import Origin, Origins
from frostline.config.wording import flow
from frostline.errors import ConfigError, Problem, SelectorError
from frostline.selectors import OF_FROZEN, OF_ROWS, OF_TRAINED, Selector, parse_selectors
from frostline.trainability.decision import Rule
from frostline.trainability.legacy import LEGACY_KEYS, LegacyBlock, is_legacy
from frostline.trainability.phases.rules import PhaseRules, parse_phases

_KEYS = ("freeze_modules", "unfreeze_modules", "frozen_mode", "allow_frozen_new", "phases")
_ELSEWHERE = {
    "freeze_embeddings": 'freeze_modules: ["embed_tokens"] (or the name of the embedding in this model)',
    "freeze_backbone": "freeze_modules: [NAME_OF_THE_BACKBONE]",
    "freeze_lm_head": 'freeze_modules: ["lm_head"] (or the name of the head in this model)',
    "unfrozen_parameters": 'unfreeze_modules: [{param: "PATTERN"}]',
}


@dataclass(frozen=True)
class FreezeRules:
    """The block, parsed. `()` in a list means that nothing is selected.

    Attributes:
        freeze, unfreeze: selectors in the order written; what legacy keys freeze comes first.
        frozen_mode: `eval` keeps wholly frozen subtrees in evaluation mode, `train` lets them follow the model.
        allow_frozen_new: freezing a parameter that the base files do not hold is meant.
        legacy: its legacy keys; a block that is not there has none, and none that is implied.
        phases: what changes later, in order.
    """

    freeze: tuple[Selector, ...] = ()
    unfreeze: tuple[Selector, ...] = ()
    frozen_mode: str = "eval"
    allow_frozen_new: bool = False
    legacy: LegacyBlock = field(default_factory=LegacyBlock)
    phases: tuple[PhaseRules, ...] = ()
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
        if key in LEGACY_KEYS and not isinstance(config[key], bool):
            problems.append(
                Problem(
                    f"{key} is {flow(config[key])}",
                    str(origins.at(key)),
                    "true or false",
                    "correct the value, or use selectors in freeze_modules (the key is deprecated)",
                )
            )
        elif key not in _KEYS and key not in LEGACY_KEYS:
            problems.append(_unknown_key(str(key), config[key], origins))
    lists: dict[str, tuple[Selector, ...]] = {}
    for key, also in (("freeze_modules", OF_FROZEN), ("unfreeze_modules", OF_TRAINED)):
        if key in config:
            try:
                lists[key] = parse_selectors(config[key], origins.below(key), also=also | OF_ROWS)
            except SelectorError as error:
                problems.extend(error.problems)
                num_malformed += len(error.problems)
    phases: tuple[PhaseRules, ...] = ()
    if "phases" in config:
        phases, faults, malformed = parse_phases(config["phases"], origins.below("phases"))
        problems += faults
        num_malformed += malformed
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
    legacy = LegacyBlock.from_config(config)
    return FreezeRules(
        (*legacy.selectors(origins), *lists.get("freeze_modules", ())),
        lists.get("unfreeze_modules", ()),
        str(mode),
        bool(allow),
        legacy,
        phases,
        origins.at(),
    )


def rule_of(selector: Selector, *, trains: bool, when: str = "") -> Rule:
    """The rule that a selector of `freeze` or `unfreeze` is, for the parameters that it decides (from `when` on)."""
    kind = "unfreeze" if trains else "freeze"
    text = str(selector) if is_legacy(selector) else f"{kind}_modules {selector}"
    return Rule(kind, text + when, selector.origin, selector.selects_params)


def _unknown_key(key: str, value: Any, origins: Origins) -> Problem:
    hint = _ELSEWHERE.get(key)
    foreign = FOREIGN_KEYS.get(key)
    if hint is None and foreign is not None and foreign.ours is not None and foreign.ours.startswith("freeze_config."):
        converted = foreign.convert(value) if foreign.convert is not None else None
        hint = foreign.ours.partition(".")[2] + (f": {flow(converted)}" if converted is not None else "")
        hint += f" ({foreign.note})" if foreign.note else ""
    near = difflib.get_close_matches(key, _KEYS, n=1)
    return Problem(
        f"unknown key `{key}` in freeze_config",
        str(origins.at(key)),
        f"here it is written: {hint}" if hint else f"nearest: {near[0]}" if near else "keys: " + ", ".join(_KEYS),
        "replace the key",
    )
