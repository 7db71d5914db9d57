"""Which examples step s trains on, as ready micro-batches: a function of (examples, seed, step) and nothing else.

So a resumed run sees exactly the batches of the uninterrupted one without replaying any. Knows nothing of losses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from frostline.data import EpochOrder
from frostline.errors import TrainingError
from frostline.training.task import Batch, Task


@dataclass(frozen=True)
class GlobalBatch:
    """All micro-batches of one optimizer step, on the training device.

    Attributes:
        micro_batches: tensors [micro_batch, ...], the longest examples first.
        num_targets: label tokens (or class weight) of the whole global batch: what the loss is divided by.
        num_units: examples or tokens, for the speed shown.
    """

    micro_batches: list[Batch]
    num_targets: float
    num_units: int


class GlobalBatches:
    """Builds the global batch of any step. The last batch of an epoch is smaller when the examples do not divide.

    Within a global batch the examples are sorted by length before they are split: the gradient is a sum, so order
    does not change it, and less padding is computed. The longest come first, so memory peaks early.
    """

    def __init__(
        self,
        examples: Sequence[Any],
        task: Task,
        *,
        batch_size: int,
        micro_batch_size: int | None = None,
        seed: int = 0,
        device: torch.device | None = None,
    ) -> None:
        self.examples, self.task = examples, task
        self.batch_size, self.micro_batch_size = batch_size, micro_batch_size or batch_size
        self.device = device or torch.device("cpu")
        self.steps_per_epoch = math.ceil(len(examples) / batch_size)
        self._order = EpochOrder(len(examples), seed)
        self._epoch: tuple[int, list[int]] = (-1, [])
        self._ready: tuple[int, GlobalBatch] | None = None

    def indices(self, step: int) -> list[int]:
        """Positions in `examples` that step `step` trains on, at most `batch_size`."""
        epoch, position = divmod(step, self.steps_per_epoch)
        if self._epoch[0] != epoch:
            self._epoch = (epoch, self._order.order(epoch))
        return self._epoch[1][position * self.batch_size : (position + 1) * self.batch_size]

    def prepare(self, step: int) -> None:
        """Builds the batch of `step` now and keeps it for `at`: host work done while the device is busy."""
        self._ready = (step, self._build(step))

    def at(self, step: int) -> GlobalBatch:
        """The global batch of `step`.

        Raises:
            TrainingError: it holds no label at all, so its loss is undefined.
        """
        ready, self._ready = self._ready, None
        return ready[1] if ready is not None and ready[0] == step else self._build(step)

    def _build(self, step: int) -> GlobalBatch:
        chosen = [self.examples[index] for index in self.indices(step)]
        size = self.micro_batch_size
        if size < len(chosen):
            chosen.sort(key=_length, reverse=True)  # stable: a function of the step
        # Counted on the CPU before the move, so that no count waits for the device.
        batches = [self.task.collate(chosen[start : start + size]) for start in range(0, len(chosen), size)]
        num_targets = sum(self.task.num_targets(batch) for batch in batches)
        if num_targets <= 0:
            raise TrainingError(
                f"the batch of step {step} has nothing to learn from: its labels count for {num_targets}",
                where=f"step {step}, examples {self.indices(step)[:8]}",
                possible="at least one label (with a class weight above zero) in every batch",
                fix="raise `training.batch_size`, or check labels, `training.class_weights` and `data.max_length`",
            )
        num_units = sum(self.task.num_units(batch) for batch in batches)
        return GlobalBatch([self._to_device(batch) for batch in batches], num_targets, num_units)

    def _to_device(self, batch: Batch) -> Batch:
        if self.device.type == "cuda":
            return {name: tensor.pin_memory().to(self.device, non_blocking=True) for name, tensor in batch.items()}
        return {name: tensor.to(self.device) for name, tensor in batch.items()}


def num_steps(num_examples: int, batch_size: int, *, epochs: float | None, max_steps: int | None) -> int:
    """Optimizer steps of the whole run: `max_steps`, or `epochs` (default 1) rounded up to whole steps."""
    if max_steps is not None:
        return max_steps
    steps = math.ceil(num_examples / batch_size) * (1.0 if epochs is None else epochs)
    return max(1, math.ceil(steps - 1e-6))  # 0.1 epochs of 30 steps is 3 steps, not 4 by rounding error


def _length(example: Any) -> int:
    return max((len(value) for value in example.values() if hasattr(value, "__len__")), default=0)
