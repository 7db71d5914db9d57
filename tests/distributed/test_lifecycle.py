"""The two runs that define `bind`: surgery before a wrapper, and a sharded step that equals one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import frostline as fl
from frostline.tree import canonical_named_parameters

from .conftest import device_of
from .models import Encoder, Extensible, inputs, seeded

FREEZE: dict[str, Any] = {
    "freeze_modules": ["base", {"glob": "ext*"}],
    "unfreeze_modules": [{"path": "extension"}],
}
TRAINED = {"extension.0.weight", "extension.0.bias", "parallel_parameter"}


def flags(model: nn.Module) -> set[str]:
    return {path for path, param in canonical_named_parameters(model) if param.requires_grad}


def operate(model: Extensible) -> None:
    """The later step: a container in place of `extension`, and parameters that no plan has seen."""
    model.extension = nn.Sequential(nn.Linear(4, 4), nn.Identity())  # type: ignore[assignment]
    with torch.no_grad():
        model.extension[0].weight.copy_(torch.eye(4))
    model.parallel_parameter = nn.Parameter(torch.ones(4))
    model.register_parameter("parallel_constant", nn.Parameter(torch.ones(4), requires_grad=False))


def _surgery_before_ddp(process_rank: int) -> list[str]:
    seen: list[set[str]] = []
    original = DistributedDataParallel.__init__

    def spy(self: DistributedDataParallel, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        seen.append(flags(module))
        original(self, module, *args, **kwargs)

    bare, plan = fl.prepare(seeded(Extensible), freeze_config=FREEZE)
    operate(bare)
    bound = plan.bind(bare, step="the surgery", group=dist.group.WORLD)
    with mock.patch.object(DistributedDataParallel, "__init__", spy):
        model = DistributedDataParallel(bare)
    assert seen == [TRAINED]
    captured = {id(param) for bucket in model.reducer._get_zeros_like_grad_buckets() for param in bucket.parameters()}
    assert {path for path, param in canonical_named_parameters(model) if id(param) in captured} == TRAINED

    bound = bound.bind(model, step="DDP", group=dist.group.WORLD)
    optimizer = torch.optim.SGD([param for param in model.parameters() if param.requires_grad], lr=0.1)
    bound.verify(model, optimizer, group=dist.group.WORLD)
    before = {path: param.detach().clone() for path, param in canonical_named_parameters(model)}
    model(inputs(process_rank)).square().mean().backward()
    optimizer.step()
    moved = {path for path, param in canonical_named_parameters(model) if not torch.equal(param, before[path])}
    assert moved == TRAINED
    assert bound.decisions["extension.0.weight"].rule.text == 'unfreeze_modules path "extension"'
    assert bound.decisions["parallel_parameter"].rule.text == "added by the surgery"
    assert bound.decisions["model_constant"].rule.text == "baseline: the model built it frozen"
    return list(bound.trainable)


def _surgery_before_fsdp(process_rank: int) -> list[str]:
    model, plan = fl.prepare(seeded(Extensible), freeze_config=FREEZE)
    operate(model)
    bound = plan.bind(model, step="the surgery", group=dist.group.WORLD)
    assert flags(model) == TRAINED
    fully_shard(model.base)
    fully_shard(model)  # one group with frozen and trained parameters
    assert all(isinstance(param, DTensor) for _, param in canonical_named_parameters(model))
    assert flags(model) == TRAINED
    again = bound.bind(model, step="fully_shard", group=dist.group.WORLD)
    assert again == bound
    optimizer = torch.optim.SGD([param for param in model.parameters() if param.requires_grad], lr=0.1)
    again.verify(model, optimizer, group=dist.group.WORLD)
    model(inputs(process_rank)).square().mean().backward()
    assert {path for path, param in canonical_named_parameters(model) if param.grad is not None} == TRAINED
    optimizer.step()
    again.verify(model, optimizer, group=dist.group.WORLD)
    return list(again.trainable)


def _sharded_step_equals_one_process(process_rank: int) -> None:
    device = device_of(process_rank)
    rule = {"freeze_modules": ["*"], "unfreeze_modules": ["head"]}
    alone, _ = fl.prepare(seeded(Encoder).to(device), freeze_config=rule)
    model, plan = fl.prepare(seeded(Encoder).to(device), freeze_config=rule)
    for block in model.layers:
        fully_shard(block)
    fully_shard(model)
    bound = plan.bind(model, step="fully_shard", group=dist.group.WORLD)
    assert bound == plan
    optimizer = torch.optim.SGD([param for param in model.parameters() if param.requires_grad], lr=0.1)
    bound.verify(model, optimizer, group=dist.group.WORLD)
    for path, param in canonical_named_parameters(model):
        assert isinstance(param, DTensor)
        assert tuple(param.shape) == bound.decisions[path].shape  # global

    batches = [inputs(rank).to(device) for rank in range(dist.get_world_size())]
    output = model(batches[process_rank])
    torch.testing.assert_close(output, alone(batches[process_rank]))
    output.square().mean().backward()
    alone(torch.cat(batches)).square().mean().backward()
    gradients = {path: param.grad for path, param in canonical_named_parameters(model) if param.grad is not None}
    assert set(gradients) == {"head.weight", "head.bias"} == set(bound.trainable)
    reference = dict(canonical_named_parameters(alone))
    for path, gradient in gradients.items():
        torch.testing.assert_close(gradient.full_tensor(), reference[path].grad)

    optimizer.step()
    torch.optim.SGD([param for param in alone.parameters() if param.requires_grad], lr=0.1).step()
    bound.verify(model, optimizer, group=dist.group.WORLD)
    for path, param in canonical_named_parameters(model):
        whole = param.full_tensor()
        torch.testing.assert_close(whole, reference[path])
        everywhere = [torch.empty_like(whole) for _ in range(dist.get_world_size())]
        dist.all_gather(everywhere, whole.contiguous())
        assert all(torch.equal(whole, other) for other in everywhere), path


def _all(process_rank: int) -> tuple[list[str], list[str]]:
    _sharded_step_equals_one_process(process_rank)
    return _surgery_before_ddp(process_rank), _surgery_before_fsdp(process_rank)


def test_surgery_then_a_wrapper_and_a_sharded_step_that_equals_one_process(
    spawn: Callable[..., list[Any]],
) -> None:
    """Row 137, row 140, and the definition of `bind`."""
    expected = ["parallel_parameter", "extension.0.weight", "extension.0.bias"]
    assert spawn(_all, 2) == [(expected, expected)] * 2
