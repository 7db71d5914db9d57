"""Parses `phases` of a `freeze_config`: from which step on another set trains. Must not know any model or data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

from frostline.config.origin import Origin, Origins
from frostline.config.wording import is_number, nearest, show
from frostline.errors import Problem, SelectorError
from frostline.selectors import OF_FROZEN, OF_TRAINED, Selector, parse_selectors

PHASE_KEYS = ("at", "freeze_modules", "unfreeze_modules", "lr")
_EXAMPLE = "{epoch: 1} or {step: 500}"


@dataclass(frozen=True)
class PhaseStart:
    """When a phase comes into force: before optimizer step `step` (0-based), or after `epoch` passes over the data."""

    epoch: float | None = None
    step: int | None = None

    def to_step(self, steps_per_epoch: int) -> int:
        """The step; a fraction of an epoch is rounded up to whole steps, as `training.epochs` is."""
        if self.step is not None:
            return self.step
        assert self.epoch is not None
        return math.ceil(self.epoch * steps_per_epoch - 1e-6)  # 0.1 epochs of 30 steps is step 3

    def __str__(self) -> str:
        return f"step {self.step}" if self.step is not None else f"epoch {self.epoch:g}"


@dataclass(frozen=True)
class PhaseRules:
    """One entry of `phases`, parsed: overlaid on the phase before it.

    Attributes:
        at: when it comes into force.
        freeze, unfreeze: selectors in the order written; what both select is thawed.
        lr: peak learning rate from there on of what names none; None keeps that of the phase before.
        origin: where the entry stands.
    """

    at: PhaseStart
    freeze: tuple[Selector, ...] = ()
    unfreeze: tuple[Selector, ...] = ()
    lr: float | None = None
    origin: Origin = field(default_factory=Origin, compare=False)


def parse_phases(value: Any, origins: Origins) -> tuple[tuple[PhaseRules, ...], list[Problem], int]:
    """The phases of the list `value`, all problems, and how many of these are faults of selectors."""
    if not isinstance(value, list | tuple):
        return (
            (),
            [
                Problem(
                    f"phases is {show(value)}",
                    str(origins.at()),
                    "a list of mappings with `at` and what changes there",
                    f"write a list:\nphases:\n  - at: {_EXAMPLE}\n    unfreeze_modules: [...]",
                )
            ],
            0,
        )
    phases: list[PhaseRules] = []
    problems: list[Problem] = []
    num_malformed = 0
    for index, entry in enumerate(cast("list[Any] | tuple[Any, ...]", value)):
        phase, faults, malformed = _parse_phase(entry, origins.below(index))
        problems += faults
        num_malformed += malformed
        if phase is not None:
            phases.append(phase)
    return tuple(phases), problems or _disordered(phases), num_malformed


def _parse_phase(entry: Any, origins: Origins) -> tuple[PhaseRules | None, list[Problem], int]:
    if not isinstance(entry, Mapping):
        fault = Problem(
            f"a phase is {show(entry)}",
            str(origins.at()),
            "a mapping with the keys " + ", ".join(PHASE_KEYS),
            f"write `at: {_EXAMPLE}` and what changes there",
        )
        return None, [fault], 0
    given = cast("Mapping[Any, Any]", entry)
    problems = [_unknown_key(str(key), origins) for key in given if key not in PHASE_KEYS]
    at, faults = _parse_at(given, origins)
    problems += faults
    num_malformed = 0
    lists: dict[str, tuple[Selector, ...]] = {}
    for key, also in (("freeze_modules", OF_FROZEN), ("unfreeze_modules", OF_TRAINED)):
        if key in given:
            try:
                lists[key] = parse_selectors(given[key], origins.below(key), also=also)
            except SelectorError as error:
                problems.extend(error.problems)
                num_malformed += len(error.problems)
    lr = given.get("lr")
    if lr is not None and not (is_number(lr) and lr > 0):
        problems.append(
            Problem(f"lr is {show(lr)}", str(origins.at("lr")), "a number above 0", "correct it, or remove the line")
        )
    if not problems and not any(lists.values()) and lr is None:
        problems.append(
            Problem(
                "the phase changes nothing: it has neither selectors nor a learning rate",
                str(origins.at()),
                "freeze_modules, unfreeze_modules, lr",
                "say what changes, or remove the phase",
            )
        )
    if problems or at is None:
        return None, problems, num_malformed
    freeze, unfreeze = lists.get("freeze_modules", ()), lists.get("unfreeze_modules", ())
    return PhaseRules(at, freeze, unfreeze, None if lr is None else float(lr), origins.at()), [], 0


def _parse_at(given: Mapping[Any, Any], origins: Origins) -> tuple[PhaseStart | None, list[Problem]]:
    here = origins.at("at")
    if "at" not in given:
        return None, [Problem("the phase has no `at`", str(origins.at()), _EXAMPLE, "say from where on it is in force")]
    at: Any = given["at"]
    if not isinstance(at, Mapping):
        return None, [Problem(f"`at` is {show(at)}", str(here), _EXAMPLE, "name an epoch or a step")]
    unknown = [key for key in at if key not in ("epoch", "step")]
    if unknown:
        return None, [
            Problem(f"`at` has the unknown key `{unknown[0]}`", str(here), _EXAMPLE, "name an epoch or a step")
        ]
    named = {str(key): value for key, value in cast("Mapping[Any, Any]", at).items() if value is not None}
    if len(named) != 1:
        what = "`at` names both an epoch and a step" if named else "`at` names neither an epoch nor a step"
        return None, [Problem(what, str(here), _EXAMPLE, "name one of them")]
    ((name, value),) = named.items()
    where = str(origins.at("at", name))
    is_step = name == "step"
    if is_step and (isinstance(value, bool) or not isinstance(value, int)):
        return None, [Problem(f"`step` is {show(value)}", where, "a whole number above 0", "correct it")]
    if not is_step and not is_number(value):
        return None, [Problem(f"`epoch` is {show(value)}", where, "a number above 0", "correct it")]
    if value <= 0:
        return None, [
            Problem(
                f"the phase begins at {name} {show(value)}",
                where,
                "above 0: from the start on, the block itself is in force",
                "write what holds at the start into freeze_config itself",
            )
        ]
    return (PhaseStart(step=int(value)) if is_step else PhaseStart(epoch=float(value))), []


def _disordered(phases: list[PhaseRules]) -> list[Problem]:
    """Phases of one unit that do not follow one another; where units are mixed, only the length of an epoch tells."""
    problems: list[Problem] = []
    for unit in ("epoch", "step"):
        same = [phase for phase in phases if getattr(phase.at, unit) is not None]
        for before, after in pairwise(same):
            if getattr(after.at, unit) <= getattr(before.at, unit):
                problems.append(out_of_order(before.at, after.at, after.origin))
    return problems


def out_of_order(before: PhaseStart, after: PhaseStart, origin: Origin, note: str = "") -> Problem:
    """Phase `after` stands behind `before` in the list, but does not begin later."""
    return Problem(
        f"the phase at {after} stands behind the one at {before}, but does not begin later{note}",
        str(origin),
        "phases in the order in which they come into force, each at a step of its own",
        "sort them, or put what begins together into one phase",
    )


def _unknown_key(key: str, origins: Origins) -> Problem:
    near = nearest(key, PHASE_KEYS)
    return Problem(
        f"unknown key `{key}` in a phase",
        str(origins.at(key)),
        f"nearest: {near}" if near else "keys: " + ", ".join(PHASE_KEYS),
        "replace the key",
    )
