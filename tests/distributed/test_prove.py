"""The proof over several processes: replicas are compared, and all processes go on or fail together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from frostline import LoRA, prepare
from frostline.errors import FrostlineError, PlanMismatchError, TrainingError
from frostline.trainability import Prover, TrainabilityPlan
from frostline.trainability.agreement import Agreement
from frostline.trainability.proof.replicas import find_unequal


class Net(nn.Module):
    """x [batch, 4] -> [batch, 2]; `experts[1]` runs where told."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 4)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor, expert: int = 0) -> Tensor:
        return self.head(torch.tanh(self.experts[expert](self.base(x))))


def prepared(config: dict[str, Any]) -> tuple[nn.Module, TrainabilityPlan]:
    torch.manual_seed(0)
    model, plan = prepare(Net(), **config)
    decisions = tuple(entry._replace(conditional="experts." in entry.path) for entry in plan.decisions.values())
    plan = TrainabilityPlan(decisions=decisions, modules=plan.modules, rules=plan.rules, adapters=plan.adapters)
    plan.apply(model)
    return model, plan


Fault = Callable[[int, int, nn.Module], None]


def run(
    rank: int,
    config: dict[str, Any],
    fault: Fault | None = None,
    *,
    ddp: bool = True,
    route: Any = None,
    epoch: int = 6,
) -> str:
    """Four steps; returns how they ended: nothing, or the message of the error."""
    model, plan = prepared(config)
    wrapped = DistributedDataParallel(model, find_unused_parameters=True) if ddp else model
    plan = plan.bind(wrapped)
    optimizer = torch.optim.SGD([param for param in model.parameters() if param.requires_grad], lr=0.1)
    prover = Prover(wrapped, plan, steps_per_epoch=epoch, group=dist.group.WORLD)
    try:
        for step in range(4):
            inputs = torch.randn(4, 4, generator=torch.Generator().manual_seed(10 * step + rank))
            wrapped(inputs, route(rank, step) if route else 0).square().sum().backward()
            if prover.watching:
                prover.before_step(step, 0.1, optimizer)
            optimizer.step()
            if fault is not None:
                fault(rank, step, model)
            if prover.watching:
                prover.after_step()
            optimizer.zero_grad()
        prover.before_save()
        prover.final_check()
    except FrostlineError as error:
        return str(error)
    return "; ".join(prover.remarks)


def write(path: str, at_step: int, on_rank: int = 1) -> Fault:
    def fault(rank: int, step: int, model: nn.Module) -> None:
        if (rank, step) == (on_rank, at_step):
            model.get_parameter(path).data[0] += 1e-6

    return fault


def prove_replicas(rank: int) -> None:
    frozen = {"freeze_config": {"freeze_modules": ["base"]}}
    lora = {"peft": LoRA(rank=2, target_modules=["base", "head", "experts.*"])}
    both = lambda rank, step: step % 2  # noqa: E731 - the route that every process takes
    for config in (frozen, lora):
        assert (said := run(rank, config, route=both)) == "", said

    # A replica that drifts, in the first step and later: every process says which tensor and which process.
    for at_step, where in ((0, "after the first optimizer step"), (2, "before a checkpoint was written")):
        said = run(rank, frozen, write("head.weight", at_step), route=both)
        assert "1 trained tensors differ between processes: head.weight (process 1 has other values)" in said, said
        assert where in said
    assert "trained tensors differ between processes" in run(rank, frozen, ddp=False, route=both)  # nobody averaged

    # A frozen tensor that one process wrote: both fail.
    assert "frozen tensors changed in the first step: base.weight" in run(rank, frozen, write("base.weight", 0))
    assert "1 frozen tensors changed during the run: base.weight" in run(
        rank, frozen, write("base.weight", 2, on_rank=0), route=both
    )

    # An adapter that one process bypasses.
    model, plan = prepared(lora)
    prover = Prover(model, plan, group=dist.group.WORLD)
    model(torch.ones(1, 4)) if rank else model.head(model.experts[0](torch.ones(1, 4)))
    with pytest.raises(TrainingError, match="the adapters of base did not run in training"):
        prover.before_step(0, 0.1)

    # A conditional tensor that only one process sees is no alarm, one that none sees is one on both.
    one = lambda rank, step: int(rank == 1 and step == 1)  # noqa: E731
    assert "differ between" in run(rank, frozen, ddp=False, route=one)
    assert run(rank, frozen, route=one, epoch=3) == ""
    assert "experts.1.weight, experts.1.bias" in run(rank, frozen, epoch=3)
    assert "shorter than an epoch: experts.1.weight" in run(rank, frozen, epoch=9)

    # Different plans are known before anything is compared.
    model, plan = prepared({"freeze_config": {"freeze_modules": ["base" if rank else "head"]}})
    with pytest.raises(PlanMismatchError, match=r"the processes of the group have different plans \(process 0: "):
        Prover(model, plan, group=dist.group.WORLD)


def test_replicas_are_compared_and_all_processes_fail_together(spawn: Any) -> None:
    spawn(prove_replicas, 2)


def compare_distributed_tensors(rank: int) -> None:
    agreement = Agreement(dist.group.WORLD)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    values = torch.arange(16.0).reshape(4, 4)
    both = distribute_tensor(values, mesh, [Replicate(), Shard(0)])
    whole = distribute_tensor(values, mesh, [Replicate(), Replicate()])
    split = distribute_tensor(values, mesh, [Shard(0), Shard(1)])
    tensors: dict[str, Tensor] = {"both": both, "whole": whole, "split": split, "plain": values.clone()}
    assert find_unequal(tensors, agreement) == {}

    def with_change(name: str, on_rank: int) -> dict[str, list[int]]:
        changed = {key: tensor.clone() for key, tensor in tensors.items()}
        if rank == on_rank:
            tensor = changed[name]
            (tensor.to_local() if isinstance(tensor, DTensor) else tensor)[0, 0] += 1
        return find_unequal(changed, agreement)

    assert with_change("plain", 2) == {"plain": [2]}
    assert with_change("whole", 3) == {"whole": [3]}
    assert with_change("both", 3) == {"both": [3]}  # its replica is on process 1: of two the first is believed
    assert with_change("split", 1) == {}  # nobody else holds that part
    # On a part of the processes only.
    pair = dist.new_group([0, 1])
    if rank < 2:
        assert find_unequal({"a": torch.full((2,), float(rank))}, Agreement(pair)) == {"a": [1]}
    dist.barrier()

    # What is gathered may be of any length, and comes in the order of the group.
    assert agreement.gather(["x" * rank]) == [["x" * other] for other in range(4)]
    assert agreement.union([f"{rank // 2}", "same"]) == ["0", "same", "1"]
    assert agreement.largest([float(rank), -1.0, float("inf") if rank == 2 else 0.0]) == [3.0, -1.0, float("inf")]


def test_of_distributed_tensors_only_replicated_dims_are_compared(spawn: Any) -> None:
    spawn(compare_distributed_tensors, 4)
