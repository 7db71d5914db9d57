"""Puts another phase into force on a live model: flags, gradients, modes, and what wrappers remember of these.

The optimizer needs nothing: it holds the tensors of all phases, and leaves those without a gradient as they are.
"""

from __future__ import annotations

import sys
from typing import TypeVar, cast

import torch
from torch import nn

from frostline.errors import PlanMismatchError
from frostline.trainability.phases.rewrap import refresh_fsdp, rewrapped, wrappers_around_ddp
from frostline.trainability.plan import TrainabilityPlan
from frostline.tree import unwrap

ModelT = TypeVar("ModelT", bound=nn.Module)


def enter_phase(model: ModelT, plan: TrainabilityPlan, index: int) -> tuple[ModelT, TrainabilityPlan]:
    """Bring phase `index` of `plan` into force on `model`; go on with the model and the plan that come back.

    Sets every flag and every mode as that phase says (frozen subtrees as `frozen_mode` says), drops the gradients of
    what is frozen there, and forgets compiled graphs, which may hold the old flags. Call it between two steps, outside
    compiled code. The values of parameters and the state of optimizers stay as they are.

    Args:
        model: bare, or inside DDP (compiled or not) or FSDP2. DDP knows only what trained when it was built, so a new
            one with the same arguments comes back and the old one is of no use any more; any other model is returned
            itself.
        plan: the plan in force.
        index: 0 is the block itself, N is `plan.phases[N - 1]`; `plan.phase_at(step)` tells it.

    Distributed: collective where `model` is DDP; call on every process.

    Raises:
        PlanMismatchError: there is no such phase, the model has other parameters, it is called inside compiled code, or
            DDP is wrapped in something that cannot be built again.
    """
    if torch.compiler.is_compiling() or _runs_inside_compiled_code():
        _refuse_compiled()
    entered = plan.in_phase(index)
    wrappers = wrappers_around_ddp(model)
    entered.apply(unwrap(model) if wrappers else model)  # the old DDP is not asked: a new one is built
    refresh_fsdp(model)
    if "torch._dynamo" in sys.modules:  # nothing was compiled before somebody imported it
        torch._dynamo.reset()
    return cast("ModelT", rewrapped(model, wrappers)), entered


def _runs_inside_compiled_code() -> bool:
    """Whether a compiled function calls this one, in a part that dynamo runs as plain Python."""
    if "torch._dynamo" not in sys.modules:
        return False
    from torch._C._dynamo.eval_frame import get_eval_frame_callback  # no public name in torch 2.13

    return get_eval_frame_callback() not in (None, False)


def _refuse_compiled() -> None:
    raise PlanMismatchError(
        "enter_phase is called inside a compiled function, whose graph holds the flags of the old phase",
        where="torch.compile",
        possible="calls between two steps, from code that is not compiled",
        fix="call enter_phase before the compiled step function",
    )
