"""The learning rate as a pure function of the step: nothing to save, so a resumed run cannot get it wrong.

Knows nothing of epochs or data. Steps count from 0; the step that runs next is the argument.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from frostline.config.models import ScheduleConfig
from frostline.config.origin import Origins
from frostline.errors import ConfigError, Problem
from frostline.trainability import Phase

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
        phase_peaks: (step, rate): from that step on, the peak of every group that names no rate itself. The curve goes
            on as it was, over the whole run: a phase does not warm up again.
    """

    name: str
    total_steps: int
    warmup_steps: int = 0
    min_lr: float = 0.0
    phase_peaks: tuple[tuple[int, float], ...] = ()

    def peak_at(self, step: int, first: float) -> float:
        """Peak rate in force at `step` for a group without a rate of its own, which starts with `first`."""
        return next((peak for start, peak in reversed(self.phase_peaks) if start <= step), first)

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
            first = float(group["initial_lr"])
            group["lr"] = self.at(step, first if group.get("own_lr") else self.peak_at(step, first))
        return float(optimizer.param_groups[0]["lr"])

    def state(self) -> dict[str, Any]:
        """What a checkpoint records, for people to read; resuming needs only the step."""
        return {
            "name": self.name,
            "total_steps": self.total_steps,
            "warmup_steps": self.warmup_steps,
            "min_lr": self.min_lr,
            **({"phase_peaks": [list(pair) for pair in self.phase_peaks]} if self.phase_peaks else {}),
        }


def build_schedule(
    config: ScheduleConfig, *, total_steps: int, phases: Sequence[Phase] = (), origins: Origins | None = None
) -> LearningRateSchedule:
    """A schedule from its config; `warmup` is a number of steps (int) or a fraction of the run (float below 1).

    Args:
        phases: those of a plan, with their steps.

    Raises:
        ConfigError: a warm-up as long as the run, or the rate of a phase below the one that the decay ends at.
    """
    warmup = config.warmup
    warmup_steps = warmup if isinstance(warmup, int) else round(warmup * total_steps)
    if 0 < total_steps <= warmup_steps:
        raise ConfigError(
            f"warm-up of {warmup} does not fit into a run of {total_steps} steps",
            where=(origins or Origins()).at("schedule", "warmup"),
            possible=f"0 to {total_steps - 1} steps, or a fraction below 1.0 such as 0.1",
            fix="shorten `schedule.warmup` or train longer",
        )
    low = [phase for phase in phases if phase.lr is not None and phase.lr < config.min_lr]
    if low:
        raise ConfigError.from_problems(
            Problem(
                f"lr {phase.lr:g} of the phase at {phase.at} is below `schedule.min_lr` {config.min_lr:g}",
                str(phase.origin),
                "rates from min_lr on; min_lr is absolute, not a fraction",
                "raise this lr or lower min_lr",
            )
            for phase in low
        )
    peaks = tuple((phase.step, phase.lr) for phase in phases if phase.lr is not None and phase.step is not None)
    return LearningRateSchedule(config.name, total_steps, warmup_steps, config.min_lr, peaks)
