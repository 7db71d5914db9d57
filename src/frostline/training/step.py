"""The inside of one optimizer step: gradients of a global batch, clipping, and the check that stops a broken run.

Knows nothing of schedules, evaluation or files. Steps that fail leave the weights as they were.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from frostline.errors import TrainingError
from frostline.training.batches import GlobalBatch
from frostline.training.task import Autocast, Task


def accumulate_gradients(model: nn.Module, task: Task, batch: GlobalBatch, autocast: Autocast) -> Tensor:
    """Adds the gradient of the global batch's mean loss to `.grad`; returns that loss as a detached scalar.

    Each micro-batch contributes (its sum over label tokens) / (label tokens of the *global* batch), so the result
    does not depend on how the batch was split.
    """
    total: Tensor | None = None
    while batch.micro_batches:
        micro_batch = batch.micro_batches.pop(0)  # frees its tensors once it has been used
        with autocast():
            loss = task.loss_sum(model, micro_batch) / batch.num_targets
        loss.backward()
        total = loss.detach() if total is None else total + loss.detach()
    assert total is not None, "a global batch has at least one micro-batch"
    return total


def clip_gradients(parameters: Sequence[Parameter], max_norm: float | None) -> Tensor | None:
    """Scales all gradients so that their joint norm is at most `max_norm`; returns the norm before.

    None without clipping. The norm is left on the device: reading it would wait for the backward.
    """
    return None if max_norm is None else nn.utils.clip_grad_norm_(parameters, max_norm)


def require_finite(
    loss: Tensor, grad_norm: Tensor | None, step: int, last_checkpoint: Callable[[], Path | None]
) -> tuple[float, float | None]:
    """Reads loss and gradient norm, the one point of a step where the host waits for the device.

    `last_checkpoint` is asked only when something is wrong.

    Raises:
        TrainingError: either is not finite. Called before the optimizer step, so the weights are still good.
    """
    values: tuple[float, float | None] = (loss.item(), None if grad_norm is None else grad_norm.item())
    for name, value in zip(("loss", "gradient norm"), values, strict=True):
        if value is not None and not math.isfinite(value):
            last_good = last_checkpoint()
            kept = f"the last good checkpoint is {last_good}" if last_good else "no checkpoint was written before it"
            raise TrainingError(
                f"the {name} is {value} at step {step}; training stopped before this step changed any weight",
                where=f"step {step} (counted from 0); {kept}",
                possible="a finite number",
                fix="lower `optimizer.lr`, lengthen `schedule.warmup`, or look for broken examples in this batch; "
                + ("then continue with --resume" if last_good else "then start again"),
            )
    return values


def trained_parameters(optimizer: torch.optim.Optimizer) -> list[Parameter]:
    """All parameters of `optimizer`, in the order of its groups."""
    return [param for group in optimizer.param_groups for param in group["params"]]
