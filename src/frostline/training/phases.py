"""Phases in the loop: the one that a step belongs to, and the switch from one to the next.

A phase is a function of the step, like the batch and the learning rate, so that a resumed run cannot get it wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import nn

from frostline.checkpoint import Manifest
from frostline.trainability import Prover, TrainabilityPlan, describe_phase, enter_phase, set_training_mode


def enter_phase_of(checkpoint: Path, model: nn.Module, plan: TrainabilityPlan) -> tuple[nn.Module, TrainabilityPlan]:
    """Bring the phase of the last step of `checkpoint` into force: before it is loaded, from its manifest alone."""
    return _enter_at(max(Manifest.read(checkpoint).step - 1, 0), model, plan)


def switch_phase(
    step: int, model: nn.Module, plan: TrainabilityPlan, prover: Prover | None, say: Callable[[str], None]
) -> tuple[nn.Module, TrainabilityPlan, Prover | None]:
    """Bring the phase of `step` into force, if another one is, in training mode; all come back as they are otherwise.

    Raises:
        PlanMismatchError: a tensor changed that was frozen so far.
    """
    before = plan.phase
    model, plan = _enter_at(step, model, plan)
    if plan.phase == before:
        return model, plan, prover
    set_training_mode(model, plan)
    say(describe_phase(plan))
    return model, plan, None if prover is None else prover.next_phase(plan, step)


def _enter_at(step: int, model: nn.Module, plan: TrainabilityPlan) -> tuple[nn.Module, TrainabilityPlan]:
    index = plan.phase_at(step)
    return (model, plan) if index == plan.phase else enter_phase(model, plan, index)
