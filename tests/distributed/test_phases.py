"""Phases with two processes: DDP built again at a switch, flags under FSDP2, resume around a switch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from frostline import enter_phase, prepare
from frostline.checkpoint import BaseIdentity, Manifest, RunFolder, load_checkpoint, save_checkpoint
from frostline.config.models import OptimizerConfig, ScheduleConfig
from frostline.errors import PlanMismatchError
from frostline.training.optimizer import build_optimizer
from frostline.training.schedule import build_schedule
from frostline.tree import canonical_named_parameters

STEPS, SWITCHES = 7, (2, 4)
BASE = BaseIdentity("net", None, "0" * 64, "float32")
CONFIG = OptimizerConfig(name="adamw", lr=0.1, weight_decay=0.1)
BLOCK = {
    "freeze_modules": ["0", "2"],
    "phases": [
        {"at": {"step": 2}, "unfreeze_modules": ["2"], "lr": 0.05},
        {"at": {"step": 4}, "freeze_modules": ["4"], "unfreeze_modules": ["0"]},
    ],
}
TRAINED = [{"4"}, {"2", "4"}, {"0", "2"}]


def net() -> nn.Module:
    """x [batch, 4] -> [batch, 2]; the same values on every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


def batch(step: int) -> Tensor:
    return torch.randn(4, 4, generator=torch.Generator().manual_seed(step))


def values(model: nn.Module) -> dict[str, Tensor]:
    full = {path: param.full_tensor() if isinstance(param, DTensor) else param for path, param in params(model)}
    return {path: tensor.detach().clone() for path, tensor in full.items()}


def params(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return list(canonical_named_parameters(model, unique=True))


class Training:
    """One process of a run made of the library's pieces."""

    def __init__(self, wrap: Callable[[nn.Module], nn.Module], rows: slice, resume_from: Path | None = None) -> None:
        model, self.plan = prepare(net(), freeze_config=BLOCK)
        self.model, self.rows, self.done = wrap(model), rows, 0
        self.optimizer = build_optimizer(self.model, self.plan, CONFIG, lr=0.1)
        self.schedule = build_schedule(ScheduleConfig(warmup=2), total_steps=STEPS, phases=self.plan.phases)
        self.losses: list[float] = []
        if resume_from is not None:
            self.enter(Manifest.read(resume_from).phase)
            self.done = load_checkpoint(
                resume_from, model=self.model, plan=self.plan, optimizer=self.optimizer, base=BASE
            ).step
        self.plan.verify(self.model, self.optimizer)

    def enter(self, index: int) -> None:
        if index != self.plan.phase:
            self.model, self.plan = enter_phase(self.model, self.plan, index)

    def step(self) -> None:
        self.enter(self.plan.phase_at(self.done))
        self.schedule.set_learning_rates(self.optimizer, self.done)
        loss = self.model(batch(self.done)[self.rows]).square().mean()
        loss.backward()
        with_gradient = {path.partition(".")[0] for path, param in params(self.model) if param.grad is not None}
        assert with_gradient == TRAINED[self.plan.phase], self.done
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.plan.verify(self.model, self.optimizer)
        self.losses.append(loss.item())
        self.done += 1


@pytest.fixture(scope="module")
def reference() -> dict[str, Tensor]:
    """What one process gets that sees whole batches."""
    run = Training(lambda model: model, slice(None))
    while run.done < STEPS:
        run.step()
    return values(run.model)


def ddp(model: nn.Module) -> DistributedDataParallel:
    wrapped = DistributedDataParallel(model, bucket_cap_mb=3, gradient_as_bucket_view=True)
    wrapped.register_comm_hook(None, allreduce_hook)
    return wrapped


def _ddp_worker(rank: int, root: str) -> dict[str, Any]:
    rows = slice(2 * rank, 2 * rank + 2)
    whole = Training(ddp, rows)
    wrappers = [whole.model]
    while whole.done < STEPS:
        whole.step()
        if whole.model is not wrappers[-1]:
            wrappers.append(whole.model)
        if rank == 0:
            with RunFolder.open(Path(root) / f"after-{whole.done}", "new") as run:
                save_checkpoint(
                    run,
                    model=whole.model,
                    plan=whole.plan,
                    optimizer=whole.optimizer,
                    scheduler_state=whole.schedule.state(),
                    progress={"step": whole.done},
                    base=BASE,
                )
        dist.barrier()
    assert len(wrappers) == 3
    new: Any = wrappers[-1]
    assert (new.bucket_bytes_cap, new.gradient_as_bucket_view) == (3 * 2**20, True)
    assert [hook for hook, _ in new._comm_hooks] == [allreduce_hook]
    final = values(whole.model)
    moments = [whole.optimizer.state[param] for _, param in params(whole.model)]
    for stop in range(1, STEPS):
        checkpoint = RunFolder.read(Path(root) / f"after-{stop}").latest()
        assert checkpoint is not None
        again = Training(ddp, rows, checkpoint)
        assert again.done == stop
        while again.done < STEPS:
            again.step()
        assert again.losses == whole.losses[stop:], stop
        resumed = values(again.model)
        assert all(torch.equal(resumed[path], final[path]) for path in final), stop
        for ours, (_, param) in zip(moments, params(again.model), strict=True):
            theirs = again.optimizer.state[param]
            assert all(torch.equal(ours[key], theirs[key]) for key in ours), stop
    compiled = Training(lambda model: torch.compile(ddp(model), backend="aot_eager"), rows)
    while compiled.done < STEPS:
        compiled.step()
    assert type(compiled.model).__name__ == "OptimizedModule"
    part: Any = nn.ModuleDict({"inner": ddp(prepare(net())[0])})
    part, plan = prepare(part, freeze_config={"phases": [{"at": {"step": 1}, "freeze_modules": ["inner.0"]}]})
    with pytest.raises(PlanMismatchError, match="a part of the model is wrapped in DDP"):
        enter_phase(part, plan, 1)
    return {"final": final, "compiled": values(compiled.model)}


def test_ddp_is_built_again_at_a_switch_and_a_resume_is_bit_exact(
    spawn: Callable[..., list[Any]], tmp_path: Path, reference: dict[str, Tensor]
) -> None:
    """Rows 37, 38, 40, 45 with two processes: before, at and after each switch; equal on both, and to one process."""
    root = tmp_path / "runs"
    root.mkdir()
    first, second = spawn(_ddp_worker, 2, str(root))
    for path, expected in reference.items():
        assert torch.equal(first["final"][path], second["final"][path])
        torch.testing.assert_close(first["final"][path], expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(first["compiled"][path], expected, rtol=0, atol=1e-5)


def _fsdp_worker(rank: int) -> dict[str, Any]:
    rows = slice(2 * rank, 2 * rank + 2)

    def shard(model: nn.Module, policy: MixedPrecisionPolicy | None = None) -> nn.Module:
        for index in (0, 2, 4):
            fully_shard(model[index], mp_policy=policy or MixedPrecisionPolicy())  # type: ignore[index]
        return fully_shard(model)

    run = Training(shard, rows)
    assert all(isinstance(param, DTensor) for _, param in params(run.model))
    same = run.model
    while run.done < STEPS:
        run.step()
    assert run.model is same
    # A group of which nothing trained at the first forward reduces as its policy says all the same.
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    half = Training(lambda model: shard(model, policy), rows)
    while half.done < STEPS:
        half.step()
    return {"final": values(run.model), "half": values(half.model)}


def test_under_fsdp2_a_phase_changes_flags_of_sharded_parameters(
    spawn: Callable[..., list[Any]], reference: dict[str, Tensor]
) -> None:
    first, second = spawn(_fsdp_worker, 2)
    for path, expected in reference.items():
        assert torch.equal(first["final"][path], second["final"][path])
        torch.testing.assert_close(first["final"][path], expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(first["half"][path], expected, rtol=0, atol=0.1)
