"""The proof on distributed tensors: FSDP2 (also in mixed precision), tensor parallel, phases, faults of one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import frostline as fl
from frostline.trainability import set_training_mode
from frostline.tree import canonical_named_parameters

from .models import Encoder, Mlp, inputs, seeded

HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
PHASES: dict[str, Any] = {
    "freeze_modules": [{"layers": ":2"}, "embed"],
    "phases": [
        {"at": {"step": 2}, "unfreeze_modules": [{"layers": ":2"}]},
        {"at": {"step": 4}, "freeze_modules": ["head"]},
    ],
}
LORA_PHASES: dict[str, Any] = {
    "unfreeze_modules": ["head"],
    "phases": [{"at": {"step": 2}, "freeze_modules": [{"param": "*lora_A*"}]}],
}


def shard(model: Any, policy: MixedPrecisionPolicy) -> Any:
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def prove(model: Any, plan: fl.TrainabilityPlan, batch_of: int, fault: tuple[str, int] | None = None) -> str:
    """Six steps, phases included; the line of the proof. `fault`: process 1 writes into a tensor after a step."""
    params = dict(canonical_named_parameters(model))
    optimizer = torch.optim.AdamW([params[path] for path in plan.ever_trained], lr=0.1)
    plan.verify(model, optimizer, group=dist.group.WORLD)
    prover = fl.Prover(model, plan, steps_per_epoch=3, group=dist.group.WORLD)
    for step in range(6):
        if plan.phase_at(step) != plan.phase:
            model, plan = fl.enter_phase(model, plan, plan.phase_at(step))
            prover = prover.next_phase(plan, step)
        optimizer.zero_grad()
        model(inputs(batch_of)).square().sum().backward()
        prover.before_step(step, 0.1, optimizer)
        optimizer.step()
        if fault is not None and (step, dist.get_rank()) == (fault[1], 1):
            _first_element(dict(canonical_named_parameters(model))[fault[0]]).add_(1e-3)
        prover.after_step()
        if step == 0:
            prover.evaluation_begin()
            model.eval()
            with torch.no_grad():
                model(inputs(batch_of))
            prover.evaluation_end()
            set_training_mode(model, plan)
            prover.before_save()
    line = prover.final_check()
    assert prover.remarks == []
    return line


def _first_element(param: nn.Parameter) -> Tensor:
    own = param.to_local() if isinstance(param, DTensor) else param
    return own.detach().view(-1)[:1]


def under_fsdp2(rank: int, policy: MixedPrecisionPolicy, fault: tuple[str, int] | None = None, **how: Any) -> str:
    model, plan = fl.prepare(seeded(Encoder), **how)
    shard(model, policy)
    return prove(model, plan.bind(model, step="fully_shard", group=dist.group.WORLD), rank, fault)


def under_tensor_parallel(fault: tuple[str, int] | None = None, **how: Any) -> str:
    model, plan = fl.prepare(seeded(Mlp), **how)
    parallelize_module(model, init_device_mesh("cpu", (2,)), {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return prove(model, plan.bind(model, step="parallelize_module", group=dist.group.WORLD), 0, fault)


def _work(rank: int) -> None:
    plain, known = MixedPrecisionPolicy(), "bit-identical to what was loaded"
    half_frozen = {"freeze_config": {"freeze_modules": [{"layers": ":2"}]}}
    settled = "to what they were when a phase froze them"
    for policy in (plain, HALF):
        assert under_fsdp2(rank, policy, **half_frozen) == f"frozen part: 8 tensors {known}"
        assert under_fsdp2(rank, policy, peft={"rank": 1}).startswith("frozen part: 20 tensors")  # odd shards
        said = under_fsdp2(rank, policy, freeze_config=PHASES)
        assert said == f"frozen part: 2 tensors {known}, 2 tensors {settled}", said
        said = under_fsdp2(rank, policy, freeze_config=LORA_PHASES, peft={"rank": 2})
        assert said == f"frozen part: 18 tensors {known}, 5 tensors {settled}", said

    # A shard that one process writes: both stop, at the first look that can see it.
    frozen = "layers.0.linear.weight"
    with pytest.raises(fl.PlanMismatchError, match=rf"frozen tensors changed in the first step: {frozen}"):
        under_fsdp2(rank, plain, (frozen, 0), **half_frozen)
    with pytest.raises(fl.PlanMismatchError, match=rf"(?s)changed during the run: {frozen}.*the end of training"):
        under_fsdp2(rank, plain, (frozen, 3), **half_frozen)
    with pytest.raises(fl.PlanMismatchError, match=rf"(?s)changed during the run: {frozen}.*the end of phase 0"):
        under_fsdp2(rank, plain, (frozen, 1), freeze_config=PHASES)
    with pytest.raises(fl.PlanMismatchError, match=r"(?s)changed during the run: head\.weight.*the end of training"):
        under_fsdp2(rank, plain, ("head.weight", 5), freeze_config=PHASES)

    assert under_tensor_parallel(freeze_config={"freeze_modules": ["up"]}) == f"frozen part: 2 tensors {known}"
    with pytest.raises(fl.PlanMismatchError, match=r"frozen tensors changed in the first step: up\.weight"):
        under_tensor_parallel(("up.weight", 0), freeze_config={"freeze_modules": ["up"]})
    # What is whole in every process is a replica; of what is split each process has its own part.
    with pytest.raises(fl.PlanMismatchError, match=r"differ between processes: before\.weight \(process 1 has other"):
        under_tensor_parallel(("before.weight", 0))
    under_tensor_parallel(("up.weight", 0))


def test_distributed_tensors_are_proven_with_phases_and_in_mixed_precision(spawn: Any) -> None:
    """Rows 20, 37, 139: the proof says of shards what it says of whole tensors, and all processes fail together."""
    spawn(_work, 2)
