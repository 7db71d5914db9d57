"""Phases of a plan: who trains from which step on. Plain data and what can be asked of it.

Parsing is in `phase_rules`, deciding in `resolve`, the switch itself in `enter`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from frostline.config.origin import Origin
from frostline.config.wording import shorten_names
from frostline.errors import ConfigError, PlanMismatchError, Problem
from frostline.trainability.decision import Decision
from frostline.trainability.phases.rules import PhaseRules, PhaseStart, out_of_order

_MAX_NAMES = 5


@dataclass(frozen=True)
class Phase:
    """One phase, resolved against a model.

    Attributes:
        rules: as written.
        decisions: of every tensor while the phase is in force, in the order of the plan.
        thaws, freezes: paths that start and that stop to train, compared with the phase before.
        step: optimizer step before which it comes into force; None until the length of an epoch is known.
        frozen_modes: for each module of the plan what selectors say of its mode while it is frozen; empty: nothing.
    """

    rules: PhaseRules
    decisions: tuple[Decision, ...]
    thaws: tuple[str, ...]
    freezes: tuple[str, ...]
    step: int | None = None
    frozen_modes: tuple[str | None, ...] = ()

    @classmethod
    def from_decisions(
        cls,
        rules: PhaseRules,
        before: Sequence[Decision],
        decisions: tuple[Decision, ...],
        frozen_modes: tuple[str | None, ...] = (),
    ) -> Phase:
        """The phase in which `decisions` follow those `before`, both in the order of the plan."""
        pairs = list(zip(before, decisions, strict=True))
        return cls(
            rules,
            decisions,
            thaws=tuple(new.path for old, new in pairs if new.trains and not old.trains),
            freezes=tuple(new.path for old, new in pairs if old.trains and not new.trains),
            step=rules.at.step,
            frozen_modes=frozen_modes,
        )

    @property
    def at(self) -> PhaseStart:
        """When it comes into force, as written."""
        return self.rules.at

    @property
    def lr(self) -> float | None:
        """Peak learning rate from here on of what names none; None keeps that of the phase before."""
        return self.rules.lr

    @property
    def origin(self) -> Origin:
        """Where it was written."""
        return self.rules.origin


def place_phases(phases: Sequence[Phase], steps_per_epoch: int, total_steps: int | None) -> tuple[Phase, ...]:
    """`phases` with their steps, which must follow one another and lie inside the run.

    Raises:
        ConfigError: with every phase that does not.
    """
    problems = placing_problems([phase.rules for phase in phases], steps_per_epoch, total_steps)
    if problems:
        raise ConfigError.from_problems(problems)
    return tuple(replace(phase, step=phase.at.to_step(steps_per_epoch)) for phase in phases)


def placing_problems(phases: Sequence[PhaseRules], steps_per_epoch: int, total_steps: int | None) -> list[Problem]:
    """What is wrong with the steps at which `phases` begin; asks nothing of a model."""
    placed = [(phase, phase.at.to_step(steps_per_epoch)) for phase in phases]
    problems: list[Problem] = []
    for (before, start), (after, next_start) in pairwise(placed):
        if next_start <= start:
            note = f": they are steps {start} and {next_start}, with {steps_per_epoch} steps an epoch"
            problems.append(out_of_order(before.at, after.at, after.origin, note))
    if total_steps is not None:
        late = [(phase, step) for phase, step in placed if step >= total_steps]
        problems.extend(_never_entered(phase, step, steps_per_epoch, total_steps) for phase, step in late)
    return problems


def phase_at(phases: Sequence[Phase], step: int) -> int:
    """Index of the phase in force at optimizer step `step`; 0 is the block itself.

    Raises:
        PlanMismatchError: a phase counts epochs, and their length is not known yet.
    """
    unplaced = [phase for phase in phases if phase.step is None]
    if unplaced:
        raise PlanMismatchError(
            f"the step of the phase at {unplaced[0].at} is not known",
            where=unplaced[0].origin,
            possible="steps, or epochs after plan.place_phases(steps_per_epoch=...)",
            fix="call plan = plan.place_phases(steps_per_epoch=...) first, or write {step: N}",
        )
    return sum(phase.step is not None and phase.step <= step for phase in phases)


def phase_problems(phases: Sequence[Phase]) -> list[Problem]:
    """Phases whose selectors change nothing, or after which nothing trains."""
    problems: list[Problem] = []
    for phase in phases:
        rules, selectors = phase.rules, [*phase.rules.freeze, *phase.rules.unfreeze]
        changes_a_mode = any(selector.frozen_mode for selector in rules.freeze)
        is_for_rate = phase.lr is not None and all(selector.optional for selector in selectors)
        if selectors and not phase.thaws and not phase.freezes and not changes_a_mode and not is_for_rate:
            problems.append(_changes_nothing(phase))
        if not any(decision.trains for decision in phase.decisions):
            problems.append(
                Problem(
                    f"nothing trains from {phase.at} on: the phase freezes all that was left",
                    str(phase.origin),
                    f"it freezes {shorten_names(phase.freezes, _MAX_NAMES)}",
                    "thaw a part in the same phase, or end the run there",
                )
            )
    return problems


def _changes_nothing(phase: Phase) -> Problem:
    rules = phase.rules
    already = [
        f"{selector}: {'trains' if trains else 'is frozen'} before, or is overruled in this phase"
        + (", or matches nothing here (it is optional)" if selector.optional else "")
        for selectors, trains in ((rules.freeze, False), (rules.unfreeze, True))
        for selector in selectors
    ]
    return Problem(
        f"the phase at {phase.at} changes nothing: everything that it selects is so already",
        str(phase.origin),
        "\n".join(already),
        'select something else (adapters with {param: "..."}), or remove the phase',
    )


def _never_entered(phase: PhaseRules, step: int, steps_per_epoch: int, total_steps: int) -> Problem:
    place = "" if phase.at.step is not None else f" (step {step})"
    return Problem(
        f"the phase at {phase.at}{place} never comes into force: the run has {total_steps} steps",
        str(phase.origin),
        f"steps 1 to {total_steps - 1}; an epoch has {steps_per_epoch}",
        "let it begin earlier, train longer, or remove it",
    )
