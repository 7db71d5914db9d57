"""The one place where `requires_grad` is written."""

from __future__ import annotations

from torch.nn import Parameter


def set_trainable(param: Parameter, trains: bool) -> None:
    """Set whether `param` learns; freezing also drops its gradient, so that no optimizer can use a stale one."""
    if param.requires_grad != trains:
        param.requires_grad_(trains)
    if not trains:
        param.grad = None
