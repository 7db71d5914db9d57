"""Number formats of the run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from frostline.config.models import TrainingConfig
from frostline.errors import ConfigError
from frostline.training.precision import autocast_for, convert_trained
from frostline.tree import canonical_named_parameters


def settings(**values: str) -> TrainingConfig:
    return TrainingConfig.model_validate(values)


def dtypes(model: torch.nn.Module, paths: tuple[str, ...]) -> set[torch.dtype]:
    params = dict(canonical_named_parameters(model))
    return {params[path].dtype for path in paths}


@pytest.mark.parametrize(
    ("loaded", "param_dtype", "precision", "trained"),
    [
        (torch.bfloat16, "auto", "bf16", torch.float32),
        (torch.bfloat16, "auto", "fp32", torch.bfloat16),
        (torch.float32, "auto", "bf16", torch.float32),
        (torch.float32, "bfloat16", "bf16", torch.bfloat16),
        (torch.float64, "float64", "fp32", torch.float64),
    ],
)
def test_case_139_only_trained_parameters_change_dtype(
    toy: Any, loaded: torch.dtype, param_dtype: str, precision: str, trained: torch.dtype
):
    model = toy.model(dtype=loaded)
    # Norms stay out of it: torch's CPU kernel takes no bfloat16 norm on a float32 input.
    plan = toy.plan(model, {"freeze_modules": ["embed", {"type": "LayerNorm"}]})
    identities = [id(param) for param in model.parameters()]
    convert_trained(model, plan, settings(param_dtype=param_dtype, precision=precision))
    assert dtypes(model, plan.trainable) == {trained}
    assert dtypes(model, plan.frozen) == {loaded}
    assert [id(param) for param in model.parameters()] == identities
    with autocast_for(precision, torch.device("cpu"))():
        loss = model(torch.tensor([[1, 2, 3]])).float().sum()
    loss.backward()


def test_a_mix_that_no_autocast_bridges_is_refused(toy: Any):
    model = toy.model(dtype=torch.bfloat16)
    plan = toy.plan(model)
    with pytest.raises(ConfigError, match=r"trained float32 parameters beside frozen bfloat16(.|\n)*precision: bf16"):
        convert_trained(model, plan, settings(param_dtype="float32"))
    assert dtypes(model, plan.trainable) == {torch.bfloat16}


def test_autocast_computes_in_bfloat16(toy: Any):
    model = toy.model()
    tokens = torch.tensor([[1, 2, 3]])
    with autocast_for("bf16", torch.device("cpu"))():
        assert model.head(torch.ones(1, 8)).dtype == torch.bfloat16
    with autocast_for("fp32", torch.device("cpu"))():
        assert model(tokens).dtype == torch.float32
