"""Adapters come before every wrapper that captures parameters: a model in the wrong order is refused."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from frostline.config.wording import shorten_names
from frostline.errors import AdapterError
from frostline.tree import data_parallel_parts, is_distributed, is_fully_sharded

_FIX = "call frostline.prepare on the bare model first, and wrap it then"


def require_unwrapped(model: nn.Module, what: str) -> None:
    """Raise AdapterError where `model` is inside DDP, or `fully_shard` has taken its parameters.

    Args:
        what: the operation that is out of order, for the message.
    """
    order = "build, prepare (adapters and flags), then parallelize"
    if data_parallel_parts(model):
        raise AdapterError(
            f"{what} comes too late: DDP has captured the parameters, and would not average new gradients",
            where=what,
            possible=order,
            fix=_FIX + " (`DistributedDataParallel(model)`)",
        )
    if is_fully_sharded(model):
        raise AdapterError(
            f"{what} comes too late: fully_shard has taken the parameters, and new ones would stay whole and unsynced",
            where=what,
            possible=order,
            fix=_FIX + " (`fully_shard(model)`)",
        )


def require_plain_weights(targets: Mapping[str, nn.Module]) -> None:
    """Raise AdapterError where a target's own parameters are DTensors already, as after `parallelize_module`."""
    parallel = [
        path
        for path, module in targets.items()
        if any(param is not None and is_distributed(param) for param in module._parameters.values())
    ]
    if parallel:
        verb = "is" if len(parallel) == 1 else "are"
        raise AdapterError(
            f"adapters come too late: {shorten_names(parallel)} {verb} tensor parallel",
            where="inject",
            possible="modules whose parameters are whole in every process",
            fix="inject before parallelize_module, or leave these modules out of target_modules",
        )
