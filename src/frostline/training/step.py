"""The inside of one optimizer step: gradients of a global batch, clipping, and the check that stops a broken run.

Knows nothing of schedules, evaluation or files. Steps that fail leave the weights as they were.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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


def gradient_norm(optimizer: torch.optim.Optimizer) -> Tensor:
    """Joint 2-norm of all gradients: a scalar, left on the device, since reading it would wait for the backward."""
    return nn.utils.get_total_norm(
        [param.grad for param in trained_parameters(optimizer) if param.grad is not None],
    )


def clip_gradients(optimizer: torch.optim.Optimizer, max_norm: float, norm: Tensor) -> None:
    """Scales all gradients in place so that their joint norm, which is `norm` now, is at most `max_norm`."""
    nn.utils.clip_grads_with_norm_(trained_parameters(optimizer), max_norm, norm)


def require_finite(
    loss: Tensor,
    norm: Tensor,
    *,
    step: int,
    optimizer: torch.optim.Optimizer,
    last_checkpoint: Callable[[], Path | None],
) -> tuple[float, float]:
    """Reads loss and gradient norm: the one point of a step where the host waits for the device.

    `last_checkpoint` is asked only when something is wrong.

    Raises:
        TrainingError: either is not finite. Called before the optimizer step, so the weights are still good.
    """
    loss_value, norm_value = loss.item(), norm.item()
    if not math.isfinite(loss_value):
        raise _not_finite(f"the loss is {loss_value}", step, last_checkpoint())
    if not math.isfinite(norm_value):
        bad = [
            name
            for group in optimizer.param_groups
            for name, param in zip(group["names"], group["params"], strict=True)
            if param.grad is not None and not param.grad.isfinite().all()
        ]
        shown = ", ".join(bad[:6]) + (f" and {len(bad) - 6} more" if len(bad) > 6 else "")
        raise _not_finite(
            f"the gradient norm is {norm_value} ({shown or 'its square overflows'})", step, last_checkpoint()
        )
    return loss_value, norm_value


def _not_finite(what: str, step: int, last_good: Path | None) -> TrainingError:
    kept = f"the last good checkpoint is {last_good}" if last_good else "no checkpoint was written before it"
    then = "continue with --resume" if last_good else "start again with --overwrite"
    return TrainingError(
        f"{what} at step {step}; training stopped before this step changed any weight",
        where=f"step {step} (counted from 0); {kept}",
        possible="finite numbers",
        fix=f"lower `optimizer.lr`, lengthen `schedule.warmup`, or look for broken examples in this batch; then {then}",
    )


def trained_parameters(optimizer: torch.optim.Optimizer) -> list[Parameter]:
    """All parameters of `optimizer`, in the order of its groups."""
    return [param for group in optimizer.param_groups for param in group["params"]]
