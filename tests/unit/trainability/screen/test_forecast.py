"""The forecast of bytes: equal to what torch's own optimizers hold, and the arithmetic of shards.

The same against real process groups is in tests/distributed/test_forecast.py.
"""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from frostline import ConfigError, LoRA, resolve
from frostline.config.models.training import OptimizerConfig, OptimizerName, TrainingConfig
from frostline.trainability.screen.forecast import STATE_OF_OPTIMIZER
from frostline.training import build_optimizer
from frostline.training.precision import trained_as

from ..conftest import encoder


class Odd(nn.Module):
    """Parameters of one, two and three dims."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 7)
        self.cube = nn.Parameter(torch.ones(2, 3, 4))


def num_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", get_args(OptimizerName))
def test_every_optimizer_of_the_config_holds_what_is_forecast(name: str, dtype: torch.dtype, momentum: float) -> None:
    settings: dict[str, Any] = {"name": name, **({"momentum": momentum} if name in ("sgd", "rmsprop") else {})}
    model = Odd().to(dtype)
    plan = resolve(model)
    optimizer = build_optimizer(model, plan, OptimizerConfig(**settings), lr=1e-3)
    sum(param.float().square().sum() for param in model.parameters()).backward()
    optimizer.step()
    forecast = plan.forecast(optimizer=name, momentum=momentum)
    held = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    assert forecast.optimizer_state == sum(map(num_bytes, held))
    assert forecast.weights == sum(map(num_bytes, model.parameters()))
    assert forecast.gradients == sum(num_bytes(param.grad) for param in model.parameters() if param.grad is not None)
    assert forecast.total == forecast.weights + forecast.gradients + forecast.optimizer_state


def test_every_optimizer_of_the_config_is_known() -> None:
    assert set(STATE_OF_OPTIMIZER) == set(get_args(OptimizerName))
    with pytest.raises(ConfigError, match="state of optimizer 'lion' is not known"):
        resolve(encoder()).forecast(optimizer="lion")


def test_frozen_parameters_have_neither_gradient_nor_state() -> None:
    plan = resolve(encoder(), freeze_config={"freeze_modules": ["layers"]})
    forecast = plan.forecast()
    assert forecast.weights == 4 * plan.num_total
    assert forecast.gradients == 4 * plan.num_trainable
    assert forecast.optimizer_state == 8 * plan.num_trainable + 4 * len(plan.trainable)
    assert forecast.adapters == 0


def test_trained_parameters_count_in_the_number_format_that_they_train_in() -> None:
    plan = resolve(encoder().to(torch.bfloat16), freeze_config={"freeze_modules": ["layers"]})
    config = TrainingConfig(precision="bf16")
    forecast = plan.forecast(trained_as=trained_as(config))
    assert forecast.weights == 2 * (plan.num_total - plan.num_trainable) + 4 * plan.num_trainable
    assert forecast.gradients == 4 * plan.num_trainable
    assert forecast.notes == (
        "bfloat16 parameters that train are kept in float32 (master weights), gradients and optimizer state too",
    )
    assert forecast.notes[0] in plan.render(memory=forecast)


def test_shards_are_padded_to_the_first() -> None:
    plan = resolve(nn.Linear(5, 7))  # 7 rows over 4 devices: 2, 2, 2, 1
    forecast = plan.forecast(dp_shard_size=4)
    assert forecast.weights == 4 * (2 * 5 + 2)
    assert forecast.num_devices == 4
    assert plan.forecast(dp_replicate_size=4).weights == plan.forecast().weights
    assert plan.forecast(dp_replicate_size=2, dp_shard_size=4).weights == forecast.weights


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.o_proj = nn.Linear(8, 4), nn.Linear(4, 8)
        self.norm = nn.LayerNorm(8)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.layers = nn.ModuleList(Attention() for _ in range(2))
        self.head = nn.Linear(8, 3)


def test_tensor_parallel_says_how_each_parameter_lies() -> None:
    plan = resolve(Decoder())
    forecast = plan.forecast(tp_size=2)
    expected = {
        "embed.weight": "row",
        "layers.0.q_proj.weight": "column",
        "layers.0.q_proj.bias": "column",
        "layers.0.o_proj.weight": "row",
        "layers.0.o_proj.bias": "replicated",
        "layers.0.norm.weight": "replicated",
        "head.weight": "replicated",
        "head.bias": "replicated",
    }
    assert {path: forecast.placements[path] for path in expected} == expected
    layer = 8 * 4 // 2 + 4 // 2 + 4 * 8 // 2 + 8 + 16
    assert forecast.weights == 4 * (10 * 8 // 2 + 2 * layer + 8 * 3 + 3)
    assert "not split, since 2 does not divide them: head" in forecast.notes
    assert "tensor parallel by the rule of pairs: 4 parameters split by column, 3 by row, 8 whole" in forecast.notes[0]
    assert "device   weights" in plan.render(devices=forecast)
    assert "on each of 2 devices (TP 2)" in plan.render(devices=forecast)


def test_the_models_own_tensor_parallel_plan_comes_first() -> None:
    plan = resolve(Decoder())
    forecast = plan.forecast(tp_size=2, tp_plan={"layers.*.q_proj": "rowwise", "layers.*.o_proj": "colwise"})
    assert forecast.placements["layers.1.q_proj.weight"] == "row"
    assert forecast.placements["layers.1.o_proj.bias"] == "column"
    assert forecast.placements["embed.weight"] == "replicated"
    assert "by the model's own plan" in forecast.notes[0]


def test_fused_experts_that_the_models_plan_names_are_split() -> None:
    model = nn.Module()
    model.experts = nn.ModuleList([nn.Module()])
    model.experts[0].gate_up_proj = nn.Parameter(torch.ones(3, 8, 4))  # [experts, out, in]
    model.experts[0].down_proj = nn.Parameter(torch.ones(3, 4, 6))
    model.experts[0].odd = nn.Parameter(torch.ones(3, 4, 5))
    styles = {"experts.*.gate_up_proj": "packed_colwise", "experts.*.down_proj": "rowwise", "experts.*.odd": "rowwise"}
    forecast = resolve(model).forecast(tp_size=2, dp_shard_size=2, tp_plan=styles)
    assert list(forecast.placements.values()) == ["column", "row", "replicated"]
    assert forecast.weights == 4 * 2 * (4 * 4 + 4 * 3 + 4 * 5)  # two of three experts on the fuller device
    assert "not split, since 2 does not divide them: experts.0.odd" in forecast.notes


@pytest.mark.parametrize("injected", [False, True])
def test_the_factor_beside_the_split_dim_is_split_with_it(injected: bool) -> None:
    model = Decoder()
    lora = LoRA(rank=3, target_modules=["q_proj", "o_proj"])
    if injected:
        from frostline import prepare

        _, plan = prepare(model, peft=lora)
        plan = plan.bind(model)  # rows of the injected modules
    else:
        plan = resolve(model, peft=lora)
    forecast = plan.forecast(tp_size=2, dp_shard_size=2)
    adapters = {path: place for path, place in forecast.placements.items() if "lora" in path and ".0." in path}
    assert adapters == {
        "layers.0.q_proj.lora_A.default.weight": "replicated",
        "layers.0.q_proj.lora_B.default.weight": "column",
        "layers.0.o_proj.lora_A.default.weight": "row",
        "layers.0.o_proj.lora_B.default.weight": "replicated",
    }
    # [3, 8] whole, [4/2, 3], [3, 4/2], [8, 3] whole; then half of the rows of each
    assert forecast.adapters == 2 * 4 * (2 * 8 + 1 * 3 + 2 * 2 + 4 * 3)
    assert "(adapters 0.0 MB)" in plan.render(devices=forecast)


def test_an_optimizer_that_cannot_run_on_shards_is_named() -> None:
    plan = resolve(encoder())
    assert "Adafactor does not run on split" in plan.forecast(optimizer="adafactor", dp_shard_size=2).notes[0]
    assert plan.forecast(optimizer="adafactor", dp_replicate_size=2).notes == ()


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="tp_size cannot be 0"):
        resolve(encoder()).forecast(tp_size=0)
