"""Phases of a plan as lines for the screen, as JSON, and compared with those of another plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from frostline.config.wording import shorten_names

if TYPE_CHECKING:
    from frostline.trainability.phases.phase import Phase
    from frostline.trainability.plan import TrainabilityPlan

_MAX_NAMES = 4


def phase_lines(plan: TrainabilityPlan) -> Iterator[str]:
    """One line a phase: when, what starts and stops to train, how much trains then, and the rate if it changes.

    Before them, where it is not the start that is in force, a line that says which phase the table belongs to.
    """
    if plan.phase:
        yield f"{plan.phase} in force: the table and `trains` are those of this phase"
    for number, phase in enumerate(plan.phases, start=1):
        trained = sum(entry.num_elements for entry in phase.decisions if entry.trains)
        parts = [part for part in changes_in_words(phase) if part]
        yield f"{number} from {describe_start(phase)} on: {'; '.join(parts)}; then {trained:,} train"


def describe_phase(plan: TrainabilityPlan) -> str:
    """The phase in force in one line, to say when it begins."""
    phase = plan.phases[plan.phase - 1]
    parts = [part for part in changes_in_words(phase) if part]
    return f"phase {plan.phase} from {describe_start(phase)} on: {'; '.join(parts)}; {plan.num_trainable:,} train now"


def describe_start(phase: Phase) -> str:
    """`step 25 (epoch 1)`, or as written where that is all there is to say."""
    if phase.at.step is not None or phase.step is None:
        return str(phase.at)
    return f"step {phase.step} ({phase.at})"


def changes_in_words(phase: Phase) -> tuple[str, ...]:
    """What starts, what stops, the learning rate; empty text for what does not change."""
    return (
        f"{_count(phase.thaws)} to train" if phase.thaws else "",
        f"{_count(phase.freezes, 'freeze')}" if phase.freezes else "",
        f"lr {phase.lr:g}" if phase.lr is not None else "",
    )


def _count(paths: Sequence[str], verb: str = "start") -> str:
    owners = list(dict.fromkeys(_block_of(path) for path in paths))
    verb = verb + "s" * (len(paths) == 1)
    return f"{len(paths)} tensor{'s' * (len(paths) > 1)} of {shorten_names(owners, _MAX_NAMES)} {verb}"


def _block_of(path: str) -> str:
    """The numbered block that a parameter is in, or its module: few words for many tensors."""
    parts = path.split(".")[:-1]
    for index, part in enumerate(parts):
        if part.isdecimal():
            return ".".join(parts[: index + 1])
    return ".".join(parts) or path


def phases_to_json(phases: Sequence[Phase]) -> list[dict[str, Any]]:
    """Each phase as JSON-able data."""
    return [
        {
            "at": str(phase.at),
            "step": phase.step,
            "lr": phase.lr,
            "origin": str(phase.origin),
            "thaws": list(phase.thaws),
            "freezes": list(phase.freezes),
        }
        for phase in phases
    ]
