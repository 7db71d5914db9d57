"""The forecast against what real processes hold: FSDP2, DDP and tensor parallelism over gloo, two processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from frostline import LoRA, prepare, resolve
from frostline.trainability import Forecast, TrainabilityPlan


class Body(nn.Module):
    """x [batch, 6] -> [batch, 3]; rows that two do not divide, and a frozen part."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 7)
        self.middle = nn.Linear(7, 5)
        self.norm = nn.LayerNorm(5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.middle(self.frozen(x).relu())))


Held = dict[str, int]


def _bytes(tensors: list[Tensor], *, padded: bool) -> int:
    total = 0
    for tensor in tensors:
        local = getattr(tensor, "_local_tensor", tensor)
        total += local.untyped_storage().nbytes() if padded else local.numel() * local.element_size()
    return total


def _train_and_measure(model: nn.Module, forward: Callable[[], Tensor], *, padded: bool = False) -> Held:
    """Bytes that this process holds after one step of AdamW; with `padded` what FSDP2 allocates for weights."""
    trained = [param for param in model.parameters() if param.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.1)
    forward().square().sum().backward()
    optimizer.step()
    state = [value for entry in optimizer.state.values() for value in entry.values() if isinstance(value, Tensor)]
    return {
        "weights": _bytes(list(model.parameters()), padded=padded),
        "gradients": _bytes([param.grad for param in trained if param.grad is not None], padded=False),
        "optimizer_state": _bytes(state, padded=False),
    }


def _numbers(forecast: Forecast) -> Held:
    return {name: getattr(forecast, name) for name in ("weights", "gradients", "optimizer_state")}


def _shard(process_rank: int) -> dict[str, Held]:
    from torch.distributed.fsdp import fully_shard

    results: dict[str, Held] = {}
    for name, peft in (("full", None), ("lora", LoRA(rank=2, target_modules=["middle", "head"]))):
        torch.manual_seed(0)
        rules = {"freeze_modules": ["frozen"]}
        model, plan = prepare(Body(), freeze_config=rules, peft=peft)
        fully_shard(model)
        x = torch.randn(4, 6)
        results[name] = _train_and_measure(model, lambda model=model, x=x: model(x))
        results[f"{name} padded"] = {"weights": _bytes(list(model.parameters()), padded=True)}
        results[f"{name} forecast"] = _numbers(plan.forecast(dp_shard_size=2))
    return results


def _replicate(process_rank: int) -> dict[str, Held]:
    from torch.nn.parallel import DistributedDataParallel

    model, plan = prepare(Body(), freeze_config={"freeze_modules": ["frozen"]})
    wrapped = DistributedDataParallel(model)
    held = _train_and_measure(model, lambda: wrapped(torch.randn(4, 6)))
    return {"held": held, "forecast": _numbers(plan.forecast(dp_replicate_size=2))}


def _tensor_parallel(process_rank: int) -> dict[str, Held]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "vocab_size": 10}
    config = LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2, attention_bias=True, mlp_bias=True)
    model = LlamaForCausalLM(config)
    plan = resolve(model, freeze_config={"freeze_modules": ["embed_tokens"]})
    plan.apply(model)
    forecast = plan.forecast(tp_size=2)
    parallelize_module(model, init_device_mesh("cpu", (2,)), _styles(plan, forecast, ColwiseParallel, RowwiseParallel))
    trained = [param for param in model.parameters() if param.requires_grad]
    for param in trained:
        param.grad = torch.zeros_like(param)
    optimizer = torch.optim.AdamW(trained, lr=0.1)
    optimizer.step()
    state = [value for entry in optimizer.state.values() for value in entry.values()]
    held = {
        "weights": _bytes(list(model.parameters()), padded=False),
        "gradients": _bytes([param.grad for param in trained if param.grad is not None], padded=False),
        "optimizer_state": _bytes(state, padded=False),
    }
    return {"held": held, "forecast": _numbers(forecast), "whole": _numbers(plan.forecast())}


def _styles(plan: TrainabilityPlan, forecast: Forecast, column: Any, row: Any) -> dict[str, Any]:
    """A plan for torch's `parallelize_module` out of the forecast's placements."""
    kinds = {"column": column, "row": row}
    return {
        path.removesuffix(".weight"): kinds[place]()
        for path, place in forecast.placements.items()
        if path.endswith(".weight") and place in kinds
    }


def test_fsdp2_holds_what_is_forecast(spawn: Callable[..., list[Any]]) -> None:
    first, second = spawn(_shard, 2)
    for name in ("full", "lora"):
        forecast = first[f"{name} forecast"]
        assert first[name] == forecast  # the fullest device
        for result in (first, second):
            assert result[f"{name} padded"]["weights"] == forecast["weights"]
        assert all(second[name][kind] <= forecast[kind] for kind in forecast)


def test_ddp_holds_what_is_forecast(spawn: Callable[..., list[Any]]) -> None:
    for result in spawn(_replicate, 2):
        assert result["held"] == result["forecast"]


def test_tensor_parallel_holds_what_is_forecast(spawn: Callable[..., list[Any]]) -> None:
    for result in spawn(_tensor_parallel, 2):
        assert result["held"] == result["forecast"]
        assert result["forecast"]["weights"] < 0.6 * result["whole"]["weights"]
