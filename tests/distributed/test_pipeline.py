"""A pipeline split: each stage holds a subset under the paths of the whole model, all stages together hold the plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, SplitPoint, pipeline

import frostline as fl
from frostline.trainability import TrainabilityPlan
from frostline.tree import canonical_named_parameters

from .models import Encoder, inputs, seeded


class Stage(Encoder):
    """What one stage keeps of the encoder: blocks under their numbers, the rest gone."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) if self.embed is not None else x
        for block in self.layers.values() if isinstance(self.layers, nn.ModuleDict) else self.layers:
            x = block(x)
        return self.head(x) if self.head is not None else x


def cut(model: Encoder, process_rank: int, *, renumber: bool = False) -> None:
    """Turn `model` into stage `process_rank` of two."""
    kept = [0, 1] if process_rank == 0 else [2, 3]
    blocks = {str(number): model.layers[number] for number in kept}
    model.layers = nn.ModuleList(blocks.values()) if renumber else nn.ModuleDict(blocks)  # type: ignore[assignment]
    if process_rank == 0:
        model.head = None  # type: ignore[assignment]
    else:
        model.embed = None  # type: ignore[assignment]


def loss(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def run(stage: Any, process_rank: int) -> None:
    """One forward and backward pass of two micro-batches."""
    schedule = ScheduleGPipe(stage, 2, loss_fn=loss)
    if process_rank == 0:
        schedule.step(inputs())
    else:
        schedule.step(target=torch.zeros(4, 3), losses=[])


def with_gradient(model: nn.Module) -> set[str]:
    return {path for path, param in canonical_named_parameters(model) if param.grad is not None}


def _manual_split(process_rank: int, rule: dict[str, Any]) -> TrainabilityPlan:
    alone, whole = fl.prepare(seeded(Stage), freeze_config=rule)
    for part in inputs().chunk(2):
        (loss(alone(part), torch.zeros(2, 3)) / 2).backward()
    model, plan = fl.prepare(seeded(Stage), freeze_config=rule)
    cut(model, process_rank)
    with pytest.raises(fl.PlanMismatchError, match=r"planned parameters vanished[\s\S]*stage=True, group="):
        plan.bind(model, step="the split")
    bound = plan.bind(model, step="the split", stage=True, group=dist.group.WORLD)
    assert bound.digest == plan.digest
    assert bound.whole is plan
    assert set(bound.decisions) == {path for path, _ in canonical_named_parameters(model)}
    bound.verify(model, group=dist.group.WORLD)
    run(PipelineStage(model, process_rank, 2, torch.device("cpu")), process_rank)
    bound.verify(model)
    reference = dict(canonical_named_parameters(alone))
    assert with_gradient(model) == set(bound.trainable)
    for path, param in canonical_named_parameters(model):
        if param.grad is not None:
            torch.testing.assert_close(param.grad, reference[path].grad)
    assert not any(param.grad is not None for path, param in reference.items() if path in whole.frozen)
    return bound


def _surgery_in_a_stage(process_rank: int) -> None:
    """Positions in a list of blocks are those of the whole model, also where a stage holds half of it."""
    rule = {"freeze_modules": [{"layers": "1:3"}]}
    model, plan = fl.prepare(seeded(Stage), freeze_config=rule)
    cut(model, process_rank)
    first = "0" if process_rank == 0 else "2"
    model.layers[first].linear = nn.Sequential(nn.Linear(4, 4))
    model.layers[first].register_parameter("scale", nn.Parameter(torch.ones(1)))
    bound = plan.bind(model, step="surgery", stage=True, group=dist.group.WORLD)
    trains = process_rank == 0  # block 0 trains, block 2 is frozen, and both stand first in their stage
    assert bound.decisions[f"layers.{first}.linear.0.weight"].trains == trains
    assert bound.decisions[f"layers.{first}.scale"].trains == trains
    again = bound.bind(model, step="nothing", group=dist.group.WORLD)
    assert again.digest == plan.digest
    fully_shard(model, mesh=torch.distributed.device_mesh.DeviceMesh("cpu", [process_rank]))
    again.bind(model, step="fully_shard", group=dist.group.WORLD).verify(model, group=dist.group.WORLD)


def _renumbered_blocks_are_refused(process_rank: int) -> None:
    """A stage that calls block 2 `layers.0` would silently get the decisions of block 0."""
    model, plan = fl.prepare(seeded(Stage), freeze_config={"freeze_modules": [{"layers": ":2"}]})
    cut(model, process_rank, renumber=True)
    with pytest.raises(fl.PlanMismatchError, match=r"12|8 planned parameters are in none of the 2 stages: layers\.2"):
        plan.bind(model, step="the split", stage=True, group=dist.group.WORLD)


def _traced_split(process_rank: int) -> None:
    model, plan = fl.prepare(seeded(Encoder), freeze_config={"freeze_modules": ["embed", {"layers": ":3"}]})
    pipe = pipeline(model, mb_args=(inputs(batch=2),), split_spec={"layers.2": SplitPoint.BEGINNING})
    module = pipe.get_stage_module(process_rank)
    bound = plan.bind(module, step="pipeline", stage=True, group=dist.group.WORLD)
    assert bound.digest == plan.digest
    run(pipe.build_stage(process_rank, torch.device("cpu")), process_rank)
    assert with_gradient(module) == set(bound.trainable)
    bound.verify(module, group=dist.group.WORLD)


def _work(process_rank: int) -> list[int]:
    mixed = _manual_split(process_rank, {"freeze_modules": [{"layers": [0, 3]}]})
    frozen_stage = _manual_split(process_rank, {"freeze_modules": ["embed", {"layers": ":3"}]})
    _surgery_in_a_stage(process_rank)
    _renumbered_blocks_are_refused(process_rank)
    _traced_split(process_rank)
    return [len(mixed.trainable), len(frozen_stage.trainable)]


def test_stages_of_a_pipeline(spawn: Callable[..., list[Any]]) -> None:
    """Row 152 (a stage may be wholly frozen): see the functions above."""
    assert spawn(_work, 2) == [[6, 0], [6, 6]]
