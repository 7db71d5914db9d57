"""In which number formats the run computes: autocast around forwards, and the dtype of trained parameters.

Must not touch parameters that stay frozen: they keep the dtype that they were loaded in.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from frostline.config.models import TrainingConfig
from frostline.config.origin import Origin, Origins
from frostline.errors import ConfigError
from frostline.trainability import TrainabilityPlan
from frostline.training.task import Autocast
from frostline.tree import canonical_named_parameters

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
HALVES = (torch.bfloat16, torch.float16)


def autocast_for(precision: str, device: torch.device) -> Autocast:
    """A factory of contexts: bfloat16 autocast on `device` for `bf16`, nothing for `fp32`."""
    if precision == "fp32":
        return nullcontext

    def bf16() -> AbstractContextManager[Any]:
        return torch.autocast(device.type, dtype=torch.bfloat16)

    return bf16


def convert_trained(
    model: nn.Module, plan: TrainabilityPlan, config: TrainingConfig, origins: Origins | None = None
) -> None:
    """Gives the floating-point parameters that any phase trains their `param_dtype`, in place; the others stay.

    `auto`: float32 for half-precision parameters under bf16 autocast (small updates would be rounded away in
    bfloat16), otherwise the dtype they have. Parameter identity is kept; call it before the optimizer is built.

    Raises:
        ConfigError: without autocast the conversion would mix two dtypes in one forward.
    """
    params = dict(canonical_named_parameters(model))
    if config.param_dtype != "auto" and config.precision == "fp32":
        dtype = DTYPES[config.param_dtype]
        _refuse_mixed_forward(plan, params, dtype, (origins or Origins()).at("training", "param_dtype"))
    converted = {getattr(torch, name): getattr(torch, other) for name, other in trained_as(config).items()}
    for path in plan.ever_trained:
        param = params[path]
        if param.dtype in converted:
            param.data = param.data.to(converted[param.dtype])


def trained_as(config: TrainingConfig) -> dict[str, str]:
    """Dtype of a parameter as loaded -> dtype that it trains in, for those that are converted."""
    if config.param_dtype == "auto":
        return dict.fromkeys(("bfloat16", "float16"), "float32") if config.precision == "bf16" else {}
    return {name: config.param_dtype for name in (*DTYPES, "float16") if name != config.param_dtype}


def _refuse_mixed_forward(
    plan: TrainabilityPlan, params: dict[str, nn.Parameter], dtype: torch.dtype, origin: Origin
) -> None:
    # Adapters cast their input themselves; base and new parameters meet frozen ones in plain torch operations.
    converted = [path for path in plan.ever_trained if plan.decisions[path].kind != "adapter"]
    others = {params[path].dtype for path in plan.never_trained if params[path].is_floating_point()} - {dtype}
    if converted and others:
        name = str(dtype).removeprefix("torch.")
        frozen = ", ".join(sorted(str(other).removeprefix("torch.") for other in others))
        raise ConfigError(
            f"param_dtype {name} would put trained {name} parameters beside frozen {frozen} ones in one forward",
            where=origin,
            possible="`training.precision: bf16`, whose autocast bridges dtypes, or `model.dtype` equal to it",
            fix=f"set `training.precision: bf16` or `model.dtype: {name}`, or leave out `training.param_dtype`",
        )
