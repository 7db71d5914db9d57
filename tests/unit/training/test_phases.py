"""Phases in the loop: optimizer, schedule, switch, checkpoints and resume. The oracle is the uninterrupted run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from frostline import enter_phase
from frostline.checkpoint import BaseIdentity, Manifest, RunFolder, load_checkpoint, save_checkpoint
from frostline.config.models import ScheduleConfig
from frostline.errors import CheckpointError, ConfigError, PlanMismatchError
from frostline.training import read_metrics
from frostline.training.optimizer import OPTIMIZERS, build_optimizer
from frostline.training.schedule import build_schedule
from frostline.tree import canonical_named_parameters

# Three steps an epoch: the last block thaws at step 3, at step 5 the head freezes.
PHASES = [
    {"at": {"epoch": 1}, "unfreeze_modules": [{"layers": "-1:"}], "lr": 0.005},
    {"at": {"step": 5}, "freeze_modules": ["head"]},
]
BLOCK = {"freeze_modules": ["embed", "layers"], "phases": PHASES}
STEPS = {"training": {"max_steps": 7}, "checkpoint": {"every": 1}, "evaluation": {"every": 2}}


def losses(path: Path) -> list[tuple[int, float, float]]:
    records = [record for record in read_metrics(path / "metrics.jsonl") if "loss" in record]
    return [(record["step"], record["loss"], record["lr"]) for record in records]


def bits(model: nn.Module) -> dict[str, bytes]:
    return {path: param.detach().numpy().tobytes() for path, param in canonical_named_parameters(model)}


def run_with_phases(toy: Any, block: dict[str, Any] | None = None, **options: Any) -> Any:
    model = toy.model(dropout=0.2)
    plan = toy.plan(model, BLOCK if block is None else block)
    return toy.train(model=model, plan=plan, **{**STEPS, **options})


def planned(toy: Any, *phases: Any) -> tuple[nn.Module, Any]:
    model = toy.model()
    return model, toy.plan(model, {"freeze_modules": ["embed", "layers"], "phases": list(phases)}).place_phases(3)


# ---- optimizer and schedule


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_case_36_no_optimizer_reaches_what_a_phase_froze(toy: Any, name: str, fused: bool, monkeypatch: Any) -> None:
    """Row 36, with phases: decay and momentum of each optimizer that a config offers leave frozen members alone."""
    if not fused:
        monkeypatch.setattr("frostline.training.optimizer.FUSED", set())
    model, plan = planned(toy, {"at": {"step": 2}, "freeze_modules": ["head"], "unfreeze_modules": ["layers.2"]})
    settings: dict[str, Any] = {"name": name, "lr": 0.05, "weight_decay": 0.1}
    if name in ("sgd", "rmsprop"):
        settings["momentum"] = 0.9
    optimizer = build_optimizer(model, plan, toy.config(optimizer=settings).optimizer, lr=0.05)
    if name in ("adamw", "adam"):
        assert bool(optimizer.param_groups[0].get("fused")) is fused
    batch = toy.task().collate(toy.examples(4))
    params = dict(model.named_parameters())
    for number in range(6):
        model, plan = enter_phase(model, plan, plan.phase_at(number) if number < 5 else 0)
        before = bits(model)
        moments = {
            path: {key: torch.as_tensor(value).clone() for key, value in optimizer.state.get(params[path], {}).items()}
            for path in plan.frozen
        }
        toy.task().loss_sum(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        moved = {path for path, value in bits(model).items() if value != before[path]}
        assert moved == set(plan.trainable)
        for path, held in moments.items():
            now = optimizer.state.get(params[path], {})
            assert held.keys() == now.keys()
            assert all(torch.equal(held[key], torch.as_tensor(now[key])) for key in held)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_case_37_every_optimizer_takes_up_what_starts_later_beside_what_trains_on(toy: Any, name: str) -> None:
    """Row 37: moments that are there already and moments that begin meet in one step."""
    model, plan = planned(toy, {"at": {"step": 2}, "unfreeze_modules": ["layers.2"]})
    settings: dict[str, Any] = {"name": name, "lr": 0.05}
    if name in ("sgd", "rmsprop"):
        settings["momentum"] = 0.9
    optimizer = build_optimizer(model, plan, toy.config(optimizer=settings).optimizer, lr=0.05)
    batch = toy.task().collate(toy.examples(4))
    for number in range(4):
        model, plan = enter_phase(model, plan, plan.phase_at(number))
        before = bits(model)
        toy.task().loss_sum(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        assert {path for path, value in bits(model).items() if value != before[path]} == set(plan.trainable)
    assert plan.phase == 1


def test_sgd_with_momentum_is_fused_only_where_all_start_together(toy: Any) -> None:
    momentum = toy.config(optimizer={"name": "sgd", "lr": 0.05, "momentum": 0.9}).optimizer
    plain = toy.config(optimizer={"name": "sgd", "lr": 0.05}).optimizer
    phase = {"at": {"step": 2}, "unfreeze_modules": ["layers.2"]}
    tagged = {"unfreeze_modules": [{"path": "layers.1", "conditional": True}]}
    for block, config, expected in (
        ({}, momentum, True),
        ({"freeze_modules": ["embed", "layers"], "phases": [phase]}, momentum, False),
        ({"freeze_modules": ["embed", "layers"], "phases": [phase]}, plain, True),
        (tagged, momentum, False),
    ):
        model = toy.model()
        optimizer = build_optimizer(model, toy.plan(model, block), config, lr=0.05)
        assert bool(optimizer.param_groups[0].get("fused")) is expected


def test_case_37_case_41_groups_of_all_phases_exist_from_the_start(toy: Any) -> None:
    """Rows 37 and 41: entering a phase adds no group, so neither a resume nor a schedule meets another number."""
    model, plan = planned(toy, {"at": {"step": 2}, "unfreeze_modules": ["layers.2"], "lr": 0.01})
    groups = [{"select": "layers.2", "lr": 0.5}, {"select": {"param": "head.bias"}, "weight_decay": 0.0}]
    config = toy.config(optimizer={"lr": 0.1, "groups": groups})
    optimizer = build_optimizer(model, plan, config.optimizer, lr=0.1)
    schedule = build_schedule(config.schedule, total_steps=10, phases=plan.phases)
    names = [group["names"] for group in optimizer.param_groups]
    assert names == [list(plan.phases[0].thaws), ["head.bias"], ["head.weight"]]
    seen: list[list[float]] = []
    for number in (0, 1, 2, 9):
        model, plan = enter_phase(model, plan, plan.phase_at(number))
        schedule.set_learning_rates(optimizer, number)
        plan.verify(model, optimizer)
        seen.append([group["lr"] for group in optimizer.param_groups])
        assert [group["names"] for group in optimizer.param_groups] == names
    # Linear decay over the whole run; a group with a rate of its own goes on, the others follow the phase.
    expected = [[0.5, 0.1, 0.1], [0.45, 0.09, 0.09], [0.4, 0.008, 0.008], [0.05, 0.001, 0.001]]
    for rates, wanted in zip(seen, expected, strict=True):
        assert rates == pytest.approx(wanted)
    never = toy.config(optimizer={"groups": [{"select": "embed", "lr": 0.5}]}).optimizer
    with pytest.raises(ConfigError, match=r"none of them trains"):
        build_optimizer(model, plan, never, lr=0.1)


def test_case_39_the_rate_of_a_phase_is_a_pure_function_of_the_step(toy: Any) -> None:
    """Row 39: nothing to save, so nothing is missing after a resume in the middle of a warm-up or a decay."""
    _, plan = planned(toy, {"at": {"step": 2}, "lr": 0.02}, {"at": {"step": 6}, "lr": 0.3})
    config = ScheduleConfig(name="linear", warmup=4)
    schedule = build_schedule(config, total_steps=8, phases=plan.phases)
    peaks = [schedule.peak_at(step, 0.1) for step in range(8)]
    assert peaks == [0.1, 0.1, 0.02, 0.02, 0.02, 0.02, 0.3, 0.3]
    factors = [0.2, 0.4, 0.6, 0.8, 1.0, 0.75, 0.5, 0.25]
    rates = [schedule.at(step, schedule.peak_at(step, 0.1)) for step in range(8)]
    assert rates == pytest.approx([peak * factor for peak, factor in zip(peaks, factors, strict=True)])
    assert schedule.state()["phase_peaks"] == [[2, 0.02], [6, 0.3]]
    assert "phase_peaks" not in build_schedule(config, total_steps=8).state()
    with pytest.raises(ConfigError, match=r"lr 0\.02 of the phase at step 2 is below `schedule.min_lr` 0\.05"):
        build_schedule(ScheduleConfig(name="linear", min_lr=0.05), total_steps=8, phases=plan.phases)


# ---- the loop


def test_a_run_with_phases_trains_in_each_what_the_phase_says(toy: Any) -> None:
    outcome = run_with_phases(toy)
    checkpoints = {int(path.name[5:]): path for path in outcome.path.glob("checkpoints/step-*")}
    assert sorted(checkpoints) == [1, 2, 3, 4, 5, 6, 7]
    phases = [Manifest.read(checkpoints[step]).phase for step in sorted(checkpoints)]
    assert phases == [0, 0, 0, 1, 1, 2, 2]  # of the last step done
    files = {step: load_file(path / "trained" / "model.safetensors") for step, path in checkpoints.items()}
    last = {f"layers.2.{name}" for name in ("norm.weight", "norm.bias", "linear.weight", "linear.bias")}
    assert set(files[3]) == {"head.weight", "head.bias"}
    assert set(files[4]) == set(files[7]) == last | {"head.weight", "head.bias"}  # the head is kept when it is frozen
    assert not torch.equal(files[5]["head.weight"], files[4]["head.weight"])
    assert torch.equal(files[7]["head.weight"], files[5]["head.weight"])
    assert not torch.equal(files[7]["layers.2.linear.weight"], files[5]["layers.2.linear.weight"])
    assert "phase 1 from step 3 (epoch 1) on: 4 tensors of layers.2 start to train; lr 0.005" in outcome.output
    assert "phase 2 from step 5 on: 2 tensors of head freeze" in outcome.output
    assert "13 tensors bit-identical to what was loaded" not in outcome.result.proof
    assert (
        "9 tensors bit-identical to what was loaded, 2 tensors to what they were when a phase" in outcome.result.proof
    )
    rates = [lr for _, _, lr in losses(outcome.path)]
    assert rates == pytest.approx([0.01 * (7 - step) / 7 * (1 if step < 3 else 0.5) for step in range(7)])


@pytest.mark.parametrize("stop", [2, 3, 4, 5, 6])
def test_case_38_case_40_a_run_resumed_around_a_switch_equals_the_uninterrupted_one(toy: Any, stop: int) -> None:
    """Rows 30, 37, 38, 40: before a switch (2), exactly at one (3, 5), after (4, 6); flags, moments, weights."""
    whole = run_with_phases(toy, name="whole")
    again = toy.root / "again"
    shutil.copytree(whole.path, again, symlinks=True)
    for path in (again / "checkpoints").iterdir():
        if path.is_symlink():
            path.unlink()
        elif int(path.name[5:]) > stop:
            shutil.rmtree(path)
    torch.manual_seed(99)  # a resumed process has drawn other numbers before
    resumed = run_with_phases(toy, name="again", mode="resume", resume_from=again / "checkpoints" / f"step-{stop:06d}")
    assert bits(resumed.model) == bits(whole.model)
    for run in (whole, resumed):
        trained = {path for path, param in run.model.named_parameters() if param.requires_grad}
        assert trained == {f"layers.2.{name}" for name in ("norm.weight", "norm.bias", "linear.weight", "linear.bias")}
    assert losses(again) == losses(whole.path)
    assert resumed.result.last_metrics == whole.result.last_metrics
    assert resumed.result.proof == whole.result.proof
    state = [sorted((path / "checkpoints/step-000007/state").rglob("*")) for path in (whole.path, again)]
    assert [file.name for file in state[0]] == [file.name for file in state[1]]
    for ours, theirs in zip(*state, strict=True):
        if ours.suffix == ".safetensors":  # whose header has no order of its own
            left, right = load_file(ours), load_file(theirs)
            assert left.keys() == right.keys()
            assert all(torch.equal(left[name], right[name]) for name in left)
        elif ours.is_file() and ours.name != "progress.json":  # which holds seconds
            assert ours.read_bytes() == theirs.read_bytes(), ours.name
    assert ("phase 1 from" in resumed.output) is (stop <= 3)
    assert ("phase 2 from" in resumed.output) is (stop <= 5)


def test_case_38_the_backbone_still_learns_after_a_resume_behind_the_switch(toy: Any) -> None:
    """Row 38, as reported: thawed at epoch 1, stopped after 2 epochs, resumed; the backbone changes."""
    first = run_with_phases(toy, name="run", checkpoint={"every": 1})
    before = bits(first.model)
    model = toy.model(dropout=0.2)
    plan = toy.plan(model, {**BLOCK, "phases": PHASES[:1]})
    longer = {"training": {"max_steps": 9}}
    base = run_with_phases(toy, block={**BLOCK, "phases": PHASES[:1]}, name="other", training={"max_steps": 6})
    after_six = bits(base.model)
    resumed = toy.train(
        model=model, plan=plan, name="other", mode="resume", resume_from=base.result.checkpoint, **{**STEPS, **longer}
    )
    now = bits(resumed.model)
    assert all(now[path] != after_six[path] for path in plan.ever_trained)
    assert all(now[path] == before[path] for path in plan.never_trained)


def test_a_phase_behind_the_end_of_the_run_is_refused_before_the_first_step(toy: Any) -> None:
    late = {**BLOCK, "phases": [{"at": {"step": 7}, "unfreeze_modules": ["layers.2"]}]}
    with pytest.raises(ConfigError, match=r"at step 7 never comes into force: the run has 7 steps"):
        run_with_phases(toy, late)


def test_a_frozen_tensor_that_moves_is_found_at_the_switch_at_the_latest(toy: Any) -> None:
    with pytest.raises(PlanMismatchError, match=r"embed\.weight[\s\S]*end of phase 0"):
        run_with_phases(toy, task=toy.task(tamper_call=2), checkpoint={"every": "end"}, evaluation={"every": "never"})


def test_a_resume_with_other_phases_is_refused_with_the_difference_and_allowed_on_demand(toy: Any) -> None:
    first = run_with_phases(toy, name="run", training={"max_steps": 6})
    other = {**BLOCK, "phases": [{**PHASES[0], "at": {"step": 2}}, PHASES[1]]}
    options = {"name": "run", "mode": "resume", "resume_from": first.result.checkpoint}
    with pytest.raises(CheckpointError, match=r"another plan[\s\S]*~ phase 1: at epoch 1 -> step 2"):
        run_with_phases(toy, other, **options)
    resumed = run_with_phases(toy, other, allow_plan_change=True, **options)
    assert resumed.result.steps == 7
    with pytest.raises(CheckpointError, match=r"- phase 2: at step 5"):
        run_with_phases(toy, {**BLOCK, "phases": PHASES[:1]}, **options)


def test_micro_batches_and_clipping_give_the_same_steps_across_a_switch(toy: Any) -> None:
    def train(micro: int) -> Any:
        model = toy.model(dtype=torch.float64)
        options = {**STEPS, "training": {"max_steps": 7, "micro_batch_size": micro, "max_grad_norm": 0.1}}
        return toy.train(model=model, plan=toy.plan(model, BLOCK), **options)

    whole, split = train(8), train(2)
    for ours, theirs in zip(split.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_every_parameter_that_any_phase_trains_gets_the_dtype_from_the_start(toy: Any) -> None:
    model = toy.model(dtype=torch.bfloat16)
    plan = toy.plan(model, BLOCK)
    options = {**STEPS, "training": {"max_steps": 6, "precision": "bf16", "param_dtype": "float32"}}
    outcome = toy.train(model=model, plan=plan, **options)
    dtypes = {path: param.dtype for path, param in outcome.model.named_parameters()}
    assert {path for path, dtype in dtypes.items() if dtype == torch.float32} == set(plan.ever_trained)
    assert {dtypes[path] for path in plan.never_trained} == {torch.bfloat16}


# ---- checkpoints by themselves


def test_case_40_a_checkpoint_says_its_phase_and_is_loaded_in_it_only(toy: Any, tmp_path: Path) -> None:
    """Row 40: the phase stands in the manifest, readable before the model and the optimizer are ready."""
    model, plan = planned(toy, {"at": {"step": 2}, "unfreeze_modules": ["layers.2"]})
    optimizer = build_optimizer(model, plan, toy.config().optimizer, lr=0.1)
    model, plan = enter_phase(model, plan, 1)
    toy.task().loss_sum(model, toy.task().collate(toy.examples(4))).backward()
    optimizer.step()
    base = BaseIdentity("toy", None, "0" * 64, "float32")
    with RunFolder.open(tmp_path / "run", "new") as run:
        arguments = {"scheduler_state": {}, "progress": {"step": 3}, "base": base}
        path = save_checkpoint(run, model=model, plan=plan, optimizer=optimizer, **arguments)
    assert Manifest.read(path).phase == 1
    fresh, at_start = planned(toy, {"at": {"step": 2}, "unfreeze_modules": ["layers.2"]})
    empty = build_optimizer(fresh, at_start, toy.config().optimizer, lr=0.1)
    with pytest.raises(
        CheckpointError, match=r"written in phase 1[\s\S]*phase 0 is in force[\s\S]*enter_phase\(.*, 1\)"
    ):
        load_checkpoint(path, model=fresh, plan=at_start, optimizer=empty, base=base)
    fresh, now = enter_phase(fresh, at_start, Manifest.read(path).phase)
    load_checkpoint(path, model=fresh, plan=now, optimizer=empty, base=base)
    assert bits(fresh) == bits(model)
    record = json.loads((path / "manifest.json").read_text())
    del record["phase"]  # as earlier versions wrote it
    (path / "manifest.json").write_text(json.dumps(record))
    assert Manifest.read(path).phase == 0
    record["phase"] = "one"
    (path / "manifest.json").write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match="phase is 'one'"):
        Manifest.read(path)
