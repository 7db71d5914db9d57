"""The learning rate as a pure function of the step: nothing to save, so a resumed run cannot get it wrong.

Knows nothing of epochs or data. Steps count from 0; the step that runs next is the argument.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from frostline.config.origin import Origin, Origins
from frostline.errors import ConfigError

#: Name -> shape over progress in [0, 1]: 1 at the end of warm-up, 0 at the end of the run.
SHAPES: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
}


@dataclass(frozen=True)
class LearningRateSchedule:
    """Warm-up, then one of `SHAPES` down to `min_lr`.

    Attributes:
        name: key of `SHAPES`.
        total_steps: optimizer steps of the whole run.
        warmup_steps: the rate rises over these steps and reaches its peak at step `warmup_steps`; step 0 is never 0.
        min_lr: absolute rate that the shape ends at (not reached by `constant`).
    """

    name: str
    total_steps: int
    warmup_steps: int = 0
    min_lr: float = 0.0

    def at(self, step: int, peak: float) -> float:
        """Learning rate of step `step` for a parameter group whose peak rate is `peak`."""
        if step < self.warmup_steps:
            return peak * (step + 1) / (self.warmup_steps + 1)
        progress = (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps)
        floor = min(self.min_lr, peak)
        return floor + (peak - floor) * SHAPES[self.name](min(progress, 1.0))

    def set_learning_rates(self, optimizer: torch.optim.Optimizer, step: int) -> float:
        """Sets every group's rate for `step` from its `initial_lr`; returns the first group's."""
        for group in optimizer.param_groups:
            group["lr"] = self.at(step, group["initial_lr"])
        return float(optimizer.param_groups[0]["lr"])

    def state(self) -> dict[str, Any]:
        """What a checkpoint records, for people to read; resuming needs only the step."""
        return {
            "name": self.name,
            "total_steps": self.total_steps,
            "warmup_steps": self.warmup_steps,
            "min_lr": self.min_lr,
        }


def build_schedule(
    name: str, warmup: float, min_lr: float, *, total_steps: int, origins: Origins | None = None
) -> LearningRateSchedule:
    """A schedule from its config; `warmup` is a number of steps (int) or a fraction of the run (float below 1).

    Raises:
        ConfigError: unknown name, or a warm-up as long as the run.
    """
    origins = origins or Origins()
    if name not in SHAPES:
        raise ConfigError(
            f"unknown schedule {name!r}", where=origins.at("schedule", "name"), possible=", ".join(sorted(SHAPES))
        )
    warmup_steps = warmup if isinstance(warmup, int) else round(warmup * total_steps)
    if warmup_steps < 0 or (warmup_steps >= total_steps and warmup_steps > 0):
        raise _bad_warmup(warmup, total_steps, origins.at("schedule", "warmup"))
    return LearningRateSchedule(name, total_steps, warmup_steps, min_lr)


def _bad_warmup(warmup: float, total_steps: int, origin: Origin) -> ConfigError:
    return ConfigError(
        f"warm-up of {warmup} does not fit into a run of {total_steps} steps",
        where=origin,
        possible=f"0 to {total_steps - 1} steps, or a fraction below 1.0 such as 0.1",
        fix="shorten `schedule.warmup` or train longer",
    )
