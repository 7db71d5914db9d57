"""DDP and tensor parallel: what they captured, flags and shapes behind them, and processes that fail together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import frostline as fl
from frostline.tree import canonical_named_parameters, set_trainable

from .models import Encoder, Mlp, Tied, inputs, seeded

FREEZE: dict[str, Any] = {"freeze_modules": ["embed", {"layers": ":2"}]}
LORA = {"method": "lora", "rank": 2, "target_modules": "all-linear"}
STYLES = {"up": ColwiseParallel(), "down": RowwiseParallel()}


def flags(model: nn.Module) -> set[str]:
    return {path for path, param in canonical_named_parameters(model) if param.requires_grad}


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([param for param in model.parameters() if param.requires_grad], lr=0.1)


def _thawing_after_ddp_is_refused() -> None:
    """Row 142 and row 143's order: DDP captures what trains when it is built."""
    bare, plan = fl.prepare(seeded(Encoder), freeze_config=FREEZE)
    model = DistributedDataParallel(bare)
    plan = plan.bind(model, step="DDP", group=dist.group.WORLD)
    assert fl.plan_of(model) is plan
    plan.verify(model, sgd(model), group=dist.group.WORLD)
    model(inputs()).mean().backward()
    plan.verify(model, sgd(model))  # rebuilt buckets are the same set

    wider = fl.resolve(bare, freeze_config={"freeze_modules": ["embed", {"layers": ":1"}]})
    for act in (wider.apply, wider.bind):
        with pytest.raises(fl.PlanMismatchError, match=r"layers\.1\.linear\.weight[\s\S]*train now, but DDP was built"):
            act(model)
    assert flags(model) == set(plan.trainable)  # nothing was changed
    narrower = fl.resolve(bare, freeze_config={"freeze_modules": ["embed", {"layers": ":3"}]})
    with pytest.raises(fl.PlanMismatchError, match=r"DDP waits for the gradient of layers\.2\.linear\.weight"):
        fl.prepare(model, freeze_config={"freeze_modules": ["embed", {"layers": ":3"}]})
    swapped = fl.resolve(bare, freeze_config={"freeze_modules": ["embed", {"layers": [0, 2]}]})  # as many tensors
    with pytest.raises(fl.PlanMismatchError, match=r"2 problems[\s\S]*prepare \(or thaw\), then wrap[\s\S]*waits"):
        swapped.apply(model)
    for path, param in canonical_named_parameters(model):
        set_trainable(param, wider.decisions[path].trains)
    with pytest.raises(fl.PlanMismatchError, match="the gradients would not be averaged over the processes"):
        wider.verify(model)
    narrower.apply(bare)
    lenient = DistributedDataParallel(bare, find_unused_parameters=True)
    narrower.verify(lenient)

    plan.apply(bare)  # the bare model, and a new wrapper: the right order
    again = DistributedDataParallel(bare)
    plan.verify(again)
    bare.head = nn.Linear(4, 3)
    with pytest.raises(
        fl.PlanMismatchError, match=r"2 problems[\s\S]*head\.weight[\s\S]*a parameter that has been replaced since"
    ):
        plan.bind(again, step="a new head")


def _adapters_after_ddp_are_refused() -> None:
    """Row 88's other side: adapters go into a model before DDP captures it."""
    model = DistributedDataParallel(seeded(Encoder))
    with pytest.raises(fl.AdapterError, match=r"inject comes too late: DDP[\s\S]*DistributedDataParallel\(model\)"):
        fl.prepare(model, peft=LORA)
    with pytest.raises(fl.AdapterError, match="inject comes too late: DDP"):
        fl.LoRA(rank=2)(model)
    assert flags(model) == {path for path, _ in canonical_named_parameters(model)}
    inner = nn.Sequential(DistributedDataParallel(seeded(Encoder)), nn.Linear(3, 2))  # DDP inside a model
    assert next(path for path, _ in canonical_named_parameters(inner)) == "0.embed.weight"
    with pytest.raises(fl.PlanMismatchError, match=r"DDP waits for the gradient of 0\.head\.weight, 0\.head\.bias"):
        fl.prepare(inner, freeze_config={"freeze_modules": ["0.head"]})
    _, plan = fl.prepare(inner, freeze_config={"freeze_modules": [{"path": "1"}]})
    plan.verify(inner)


def _tensor_parallel_changes_no_flag(process_rank: int) -> None:
    """Row 20: trainables are the same before and after; row 21: so they are after a re-registration that lost flags."""
    mesh = init_device_mesh("cpu", (2,))
    alone, _ = fl.prepare(seeded(Mlp), peft={**LORA, "target_modules": ["before"]})
    model, plan = fl.prepare(seeded(Mlp), peft={**LORA, "target_modules": ["before"]})
    before = flags(model)
    parallelize_module(model, mesh, STYLES)
    assert flags(model) == before == set(plan.trainable)
    bound = plan.bind(model, step="parallelize_module", group=dist.group.WORLD)
    assert bound == plan
    assert isinstance(model.up.weight, DTensor)
    bound.verify(model, sgd(model), group=dist.group.WORLD)
    output = model(inputs())
    torch.testing.assert_close(output, alone(inputs()))
    output.mean().backward()
    bound.verify(model, sgd(model))

    model, plan = fl.prepare(seeded(Mlp), freeze_config={"freeze_modules": ["up"]})
    model.up.weight = nn.Parameter(distribute_tensor(model.up.weight.data, mesh, [Shard(0)]))
    assert model.up.weight.requires_grad  # the flag is lost
    with pytest.raises(fl.PlanMismatchError, match=r"up\.weight: planned frozen, but is trained"):
        plan.verify(model)
    plan.bind(model, step="the re-registration").verify(model)
    assert not model.up.weight.requires_grad
    with pytest.raises(fl.AdapterError, match=r"up is tensor parallel[\s\S]*inject before parallelize_module"):
        fl.prepare(model, peft={**LORA, "target_modules": ["up"]})

    model, plan = fl.prepare(seeded(Tied), freeze_config={"freeze_modules": ["body"]})
    parallelize_module(model, mesh, {"head": ColwiseParallel()})  # the embedding stays whole: the tie is broken
    with pytest.raises(fl.PlanMismatchError, match=r"embed\.weight and head\.weight were one tensor"):
        plan.bind(model, step="parallelize_module")


def _adapted_modules_are_not_made_tensor_parallel() -> None:
    """Row 20's kind: torch's styles would fail in their middle, or split rows that belong to every process."""
    mesh = init_device_mesh("cpu", (2,))
    for name, style in STYLES.items():
        model, plan = fl.prepare(seeded(Mlp), peft={**LORA, "target_modules": [name]})
        with pytest.raises(
            fl.AdapterError, match=r"(?s)Linear with an adapter.*torch's styles know only.*possible: .*do: +leave .*"
        ):
            parallelize_module(model, mesh, {name: style})
        plan.verify(model)
        assert torch.equal(model(inputs()), seeded(Mlp)(inputs()))  # nothing has changed
    rows = {"freeze_modules": ["embed", "body"], "unfreeze_modules": [{"param": "embed.weight", "rows": "1:"}]}
    model, _ = fl.prepare(seeded(Tied), freeze_config=rows)
    for name, style in (("embed", RowwiseParallel()), ("head", ColwiseParallel())):
        with pytest.raises(fl.AdapterError, match="with an adapter or trained rows is to become tensor parallel"):
            parallelize_module(model, mesh, {name: style})


def _processes_fail_together(process_rank: int) -> list[str]:
    """A fault of one process is heard of by all, and none hangs."""
    model, plan = fl.prepare(seeded(Encoder), freeze_config=FREEZE)
    world, heard = dist.group.WORLD, list[str]()
    if process_rank == 1:
        set_trainable(model.head.weight, False)
    with pytest.raises(fl.PlanMismatchError) as caught:
        plan.verify(model, group=world)
    heard.append(str(caught.value))
    plan.apply(model)
    if process_rank == 0:
        model.head = nn.Linear(4, 5)
    with pytest.raises(fl.PlanMismatchError) as caught:
        plan.bind(model, step="a new head", group=world)
    heard.append(str(caught.value))
    with pytest.raises(AttributeError if process_rank == 0 else fl.PlanMismatchError):  # an error that is not ours
        plan.bind(None if process_rank == 0 else model, group=world)  # type: ignore[arg-type]
    return heard


def _different_plans_are_an_error(process_rank: int) -> str:
    rule = FREEZE if process_rank == 0 else {"freeze_modules": ["embed", {"layers": ":3"}]}
    model, plan = fl.prepare(seeded(Encoder), freeze_config=rule)
    plan.verify(model)  # each is right by itself
    with pytest.raises(fl.PlanMismatchError) as caught:
        plan.verify(model, group=dist.group.WORLD)
    return str(caught.value)


def _work(process_rank: int) -> tuple[list[str], str]:
    _thawing_after_ddp_is_refused()
    _adapters_after_ddp_are_refused()
    _tensor_parallel_changes_no_flag(process_rank)
    _adapted_modules_are_not_made_tensor_parallel()
    return _processes_fail_together(process_rank), _different_plans_are_an_error(process_rank)


def test_ddp_tensor_parallel_and_agreement(spawn: Callable[..., list[Any]]) -> None:
    """Rows 20, 21, 88, 142, 143: see the functions above."""
    (first, other_plan), (second, other_plan_too) = spawn(_work, 2)
    assert "process 1 of 2 failed" in first[0]
    assert "process 1: the model departed from the plan in 1 place" in first[0]
    assert "head.weight: planned trained, but is frozen" in second[0]
    assert "head.weight has shape [5, 4]" in first[1]
    assert "process 0: head.weight has shape [5, 4]" in second[1]
    assert "the processes have different plans (process 0: " in other_plan
    assert "this process has the plan of process 0" in other_plan
    assert "~ layers.2.linear.weight: trained -> frozen" in other_plan_too
