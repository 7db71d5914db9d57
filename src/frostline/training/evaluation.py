"""Scores a model without leaving a trace: mode, gradients and random numbers are as before when it returns.

Knows nothing of cadence or of what is done with the metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from frostline.trainability import Prover, TrainabilityPlan, set_training_mode
from frostline.training.seeding import preserved_rng
from frostline.training.task import Autocast, Task


def evaluate(
    model: nn.Module,
    plan: TrainabilityPlan,
    task: Task,
    examples: Sequence[Any],
    *,
    batch_size: int,
    device: torch.device,
    autocast: Autocast,
    prover: Prover | None = None,
) -> dict[str, Any]:
    """The task's metrics on `examples`: `loss` and others as floats, anything larger under `report`.

    With a `prover` the first evaluation must run every adapter.

    Raises:
        TrainingError: an adapter was bypassed.
    """
    was_training = model.training
    model.eval()
    try:
        # inference_mode would forbid what an adapter may cache for training; no_grad costs the same here.
        with preserved_rng(device), torch.no_grad():
            if prover is not None:
                prover.evaluation_begin()
            metrics = task.evaluate(model, examples, batch_size=batch_size, device=device, autocast=autocast)
            if prover is not None:
                prover.evaluation_end()
            return metrics
    finally:
        if was_training:
            set_training_mode(model, plan)


def scalars(metrics: dict[str, Any]) -> dict[str, float]:
    """The numbers among `metrics`."""
    return {name: value for name, value in metrics.items() if isinstance(value, int | float)}
