"""What wraps the modules of a model at the moment: DDP, `fully_shard` (FSDP2), flat parameters (FSDP1).

FSDP2 puts gathered stand-ins in the place of its parameters while a module computes, and leaves them there after a
forward pass without a backward pass. The optimizer holds the real ones, and flags set on a stand-in are lost: every
walk over parameters gives the real ones. Nothing here communicates.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel

from frostline.tree.flags import set_trainable


def parameters_at_rest(model: nn.Module) -> Mapping[int, Parameter]:
    """Identity of each gathered stand-in that is in place now -> the parameter that it stands for."""
    return {id(stand_in): param for stand_in, param in _gathered(model)}


def carry_flags_over(model: nn.Module) -> None:
    """Give the gathered stand-ins the flags of their parameters, so that the next forward pass knows them too."""
    for stand_in, param in _gathered(model):
        set_trainable(stand_in, param.requires_grad)


def shard_groups(model: nn.Module) -> Iterator[Sequence[Parameter]]:
    """The parameters that each `fully_shard` call communicates together."""
    for group in _groups(model):
        yield [entry.sharded_param for entry in group.fsdp_params]


def is_fully_sharded(model: nn.Module) -> bool:
    """Whether `fully_shard` was called on a part of `model`."""
    return any(_fsdp_modules(model))


def data_parallel_parts(model: nn.Module) -> list[DistributedDataParallel]:
    """Every DDP wrapper in `model`, itself included; none where this process is in no group, which DDP needs."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return []
    return [module for module in _every_module(model) if isinstance(module, DistributedDataParallel)]


def has_flat_parameters(model: nn.Module) -> bool:
    """Whether a part of `model` is wrapped by the older FullyShardedDataParallel."""
    # By name: importing torch.distributed.fsdp only to look costs a second.
    if "torch.distributed.fsdp" not in sys.modules:
        return False
    return any(type(module).__name__ == "FullyShardedDataParallel" for module in _every_module(model))


def _every_module(model: nn.Module) -> Iterator[nn.Module]:
    """What `model.modules()` gives, in another order, without making the paths: a fourth of the time."""
    waiting, seen = [model], {id(model)}
    while waiting:
        module = waiting.pop()
        yield module
        for child in module._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                waiting.append(child)


def _gathered(model: nn.Module) -> Iterator[tuple[Parameter, Parameter]]:
    for group in _groups(model):
        for entry in group.fsdp_params:
            info = entry._module_info
            current = info.module._parameters.get(info.param_name)
            # Reading, not `sharded_state`: what counts is what stands in the module.
            if current is not None and current is not entry.sharded_param and entry.sharded_state.name != "SHARDED":
                yield current, entry.sharded_param


def _groups(model: nn.Module) -> Iterator[Any]:
    for module in _fsdp_modules(model):
        state = module._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None)  # a list since torch 2.10, one group or None before
        yield from (groups if groups is not None else filter(None, (state._fsdp_param_group,)))


def _fsdp_modules(model: nn.Module) -> Iterator[Any]:
    # Not imported where nobody else has: then no module can be one, and the walk is spared.
    package = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(package, "FSDPModule", None)
    if kind is None or not torch.distributed.is_initialized():
        return
    yield from (module for module in _every_module(model) if isinstance(module, kind))
