"""What wrappers remember of what trains: DDP is built again, FSDP2 is told to look again."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, cast

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from frostline.errors import PlanMismatchError
from frostline.tree import unwrap, wrapped_child


def wrappers_around_ddp(model: nn.Module) -> list[nn.Module]:
    """From the outermost wrapper down to DDP; empty where there is no DDP.

    Raises:
        PlanMismatchError: DDP or a wrapper around it that cannot be built again, or DDP somewhere inside the model.
    """
    chain = [model]
    while not isinstance(chain[-1], DistributedDataParallel):
        child = wrapped_child(chain[-1])
        if child is None:
            break
        chain.append(cast(nn.Module, chain[-1]._modules[child]))
    if not isinstance(chain[-1], DistributedDataParallel):
        if any(isinstance(module, DistributedDataParallel) for module in unwrap(model).modules()):
            raise PlanMismatchError(
                "a part of the model is wrapped in DDP, which knows only what trained when it was built",
                where=type(unwrap(model)).__name__,
                possible="DDP around the whole model",
                fix="wrap the whole model, or build that part's DDP again after plan.in_phase(N).apply(model)",
            )
        return []
    for wrapper in chain[:-1]:
        if not _is_compiled_wrapper(wrapper):
            raise PlanMismatchError(
                f"DDP is inside {type(wrapper).__name__}, which enter_phase cannot build again",
                where=type(wrapper).__name__,
                possible="DDP outermost, or torch.compile around it",
                fix="give enter_phase the DDP module, and wrap what it returns",
            )
    ddp: Any = chain[-1]
    if ddp._delay_all_reduce_params:
        raise PlanMismatchError(
            "DDP was built with delay_all_reduce_named_params, which it does not tell afterwards",
            where="DistributedDataParallel",
            possible="DDP without it",
            fix="leave it out, or build DDP again yourself after plan.in_phase(N).apply(model)",
        )
    return chain


def _is_compiled_wrapper(module: nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule" and hasattr(module, "dynamo_ctx")


def rewrapped(model: nn.Module, chain: Sequence[nn.Module]) -> nn.Module:
    """`model` with the wrappers of `chain` (from `wrappers_around_ddp`) built again; itself where there are none."""
    if not chain:
        return model
    rebuilt: nn.Module = _rebuilt_ddp(cast(DistributedDataParallel, chain[-1]))
    for wrapper in reversed(chain[:-1]):
        compiled: Any = wrapper
        rebuilt = type(compiled)(rebuilt, compiled.dynamo_ctx)
    return rebuilt


def _rebuilt_ddp(old: DistributedDataParallel) -> DistributedDataParallel:
    """A DDP of the same module with the arguments of `old`, whose hooks are removed."""
    held: Any = old
    arguments: dict[str, Any] = {
        "device_ids": held.device_ids,
        "output_device": held.output_device,
        "dim": held.dim,
        "init_sync": False,  # the replicas are equal already
        "bucket_cap_mb": None if held.bucket_bytes_cap_default else held.bucket_bytes_cap // 2**20,
        "find_unused_parameters": held.find_unused_parameters,
        "gradient_as_bucket_view": held.gradient_as_bucket_view,
        "static_graph": held.static_graph,
        "mixed_precision": held.mixed_precision,
    }
    mesh = getattr(held, "device_mesh", None)
    arguments |= {"process_group": held.process_group} if mesh is None else {"device_mesh": mesh}
    if getattr(held, "bucket_bytes_cap_list", None):
        arguments |= {
            "bucket_cap_mb": None,
            "bucket_cap_mb_list": [size // 2**20 for size in held.bucket_bytes_cap_list],
        }
    known = inspect.signature(DistributedDataParallel).parameters
    # Which of them there are depends on torch; `broadcast_buffers` is the old word for `forward_sync_buffers`.
    syncs = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    for name in (syncs, "skip_all_reduce_unused_params", "batched_grad_copy"):
        if name in known:
            arguments[name] = getattr(held, name)
    held._remove_autograd_hooks()  # else both would reduce each gradient, the old one for nobody
    rebuilt = DistributedDataParallel(held.module, **arguments)
    for hook, state in held._comm_hooks:
        rebuilt.register_comm_hook(state, hook)
    rebuilt.training = held.training  # of the wrapper alone: the modules inside have their modes already
    return rebuilt


def refresh_fsdp(model: nn.Module) -> None:
    """Let every FSDP2 group of `model` look again in which dtype it reduces.

    It asked what trained at the first forward: without a second look, a group of which nothing trained then would
    reduce in the dtype of its gradients, whatever its policy says (torch 2.13).
    """
    for module in model.modules():
        get_state: Any = getattr(module, "_get_fsdp_state", None)
        if not callable(get_state):
            continue
        state: Any = get_state()
        groups: list[Any] = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
        for group in groups:
            if group is not None:
                group._init_mp_dtypes()
