"""Runs with phases through the recipes: plan, train, resume around a switch, evaluate, predict, export, inspect."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from frostline.checkpoint import Manifest
from frostline.cli.inspection import describe
from frostline.errors import CheckpointError, ConfigError, SelectorError
from frostline.recipes.config_checks import read_config
from frostline.recipes.exporting import export_run
from frostline.recipes.finished import evaluate_run
from frostline.recipes.runs import plan_run, shorten

PHASES = [
    {"at": {"step": 2}, "unfreeze_modules": [{"layers": "-1:"}], "lr": 2e-3},
    {"at": {"step": 4}, "freeze_modules": ["classifier"], "lr": 1e-3},
]


@pytest.fixture
def in_phases(classify: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Six steps, a checkpoint after each; LoRA in the first layer, then the last one in full, then without the head."""

    def make(**sections: Any) -> dict[str, Any]:
        config: dict[str, Any] = classify(
            freeze_config={"phases": PHASES},
            training={"max_steps": 6},
            checkpoint={"every": 1},
            schedule={"name": "cosine", "warmup": 1},
        )
        return {**config, **sections}

    return make


@pytest.mark.parametrize("peft", [True, False])
def test_a_run_with_phases_resumes_bit_for_bit_and_serves_every_checkpoint(
    in_phases: Any, launch: Any, resumes_bit_for_bit: Any, in_peft: Any, tmp_path: Path, peft: bool
) -> None:
    """Rows 38 and 40 through the recipes: stopped before, exactly at and after each switch."""
    config = in_phases() if peft else in_phases(peft=None, freeze_config={"freeze_modules": ["bert"], "phases": PHASES})
    run = launch(config)
    assert run.result.steps == 6
    assert "bit-identical to what was loaded" in run.result.proof
    assert "froze them" in run.result.proof
    for step in (1, 2, 3, 4, 5):
        shutil.rmtree(tmp_path / "run-resumed", ignore_errors=True)
        resumes_bit_for_bit(run, config, step=step)

    plan = run.planned.plan
    assert [phase.step for phase in plan.phases] == [2, 4]
    stored = json.loads((run.folder / "plan.json").read_text())
    assert [phase["step"] for phase in stored["phases"]] == [2, 4]
    for step in range(1, 7):
        finished = run.open(f"step-{step}")
        phase = finished.manifest.phase
        assert phase == plan.phase_at(step - 1)
        part = load_file(next(finished.trained_part.glob("*.safetensors")))
        assert any(".layer.1.output" in name for name in part) is (phase > 0)
        assert any("classifier" in name for name in part)
        model, loaded = finished.load_model(finished.assemble(with_data=False), torch.device("cpu"))
        assert loaded.phase == phase
        loaded.verify(model)
        (score,) = evaluate_run(finished)
        written = {line["step"]: line.get("validation_loss") for line in run.metrics if "validation_loss" in line}
        if step in written:
            assert score.metrics["loss"] == pytest.approx(written[step], rel=1e-5)
    text = describe(run.folder, check=True)
    assert ", phase 2" in text
    assert ", phase" not in describe(run.folder / "checkpoints" / "step-000002", check=True)

    batch = {"input_ids": torch.tensor([[4, 9, 12, 5]]), "attention_mask": torch.ones(1, 4, dtype=torch.long)}
    for step in (2, 6):
        merged = export_run(run.open(f"step-{step}"), "merged", tmp_path / f"merged-{step}")
        from transformers import AutoModelForSequenceClassification

        theirs: Any = AutoModelForSequenceClassification.from_pretrained(merged).eval()
        with torch.no_grad():
            difference = theirs(**batch).logits - run.model(f"step-{step}")(**batch).logits
        assert difference.abs().max() <= 1e-5
    if peft:
        exported = export_run(run.open("step-2"), "peft", tmp_path / "adapter-2")
        assert not any(".layer.1.output" in name for name in load_file(exported / "adapter_model.safetensors"))
        later = load_file(export_run(run.open("step-6"), "peft", tmp_path / "adapter-6") / "adapter_model.safetensors")
        assert any(".layer.1.output" in name for name in later)


def test_the_plan_says_when_each_phase_begins(in_phases: Any) -> None:
    epochs = [{**PHASES[0], "at": {"epoch": 0.5}}, {**PHASES[1], "at": {"epoch": 1}}]
    config = in_phases(freeze_config={"phases": epochs})
    text = plan_run(read_config(config)).render()
    assert "phase    1 from step 3 (epoch 0.5) on: 16 tensors of bert.encoder.layer.1 start to train; lr 0.002" in text
    assert "phase    2 from step 5 (epoch 1) on: 2 tensors of classifier freeze; lr 0.001" in text
    assert "backward reaches bert.encoder.layer.0\n" in text
    head_first = {"freeze_modules": ["bert"], "phases": epochs[:1]}
    text = plan_run(read_config(in_phases(peft=None, freeze_config=head_first))).render()
    assert "backward reaches classifier, then bert.encoder.layer.1\n" in text


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ({"step": 6}, r"at step 6 never comes into force: the run has 6 steps"),
        ({"epoch": 2}, r"at epoch 2 \(step 10\) never comes into force"),
    ],
)
def test_a_phase_outside_the_run_is_refused_by_the_plan_already(in_phases: Any, at: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_run(read_config(in_phases(freeze_config={"phases": [{**PHASES[0], "at": at}]})))


def test_mixed_units_out_of_order_are_found_once_epochs_have_a_length(in_phases: Any) -> None:
    phases = [{**PHASES[0], "at": {"epoch": 1}}, {**PHASES[1], "at": {"step": 4}}]
    with pytest.raises(ConfigError, match=r"at step 4 stands behind the one at epoch 1.*steps 5 and 4"):
        plan_run(read_config(in_phases(freeze_config={"phases": phases})))


def test_phases_out_of_order_are_told_together_with_dead_selectors(in_phases: Any) -> None:
    phases = [{**PHASES[0], "at": {"epoch": 1}}, {"at": {"step": 3}, "freeze_modules": [{"type": "BertLayr"}]}]
    with pytest.raises(SelectorError, match="2 problems") as caught:
        plan_run(read_config(in_phases(freeze_config={"phases": phases})))
    first, second = (problem.what for problem in caught.value.problems)
    assert "selector type BertLayr matched 0 modules" in first
    assert "the phase at step 3 stands behind the one at epoch 1" in second
    repeated = [{**PHASES[0], "at": {"epoch": 1}}, {**PHASES[0], "at": {"step": 3}}]
    with pytest.raises(ConfigError, match=r"changes nothing[\s\S]*stands behind"):
        plan_run(read_config(in_phases(freeze_config={"phases": repeated})))


def test_a_smoke_run_takes_one_step_in_each_phase(in_phases: Any, launch: Any) -> None:
    loaded = shorten(read_config(in_phases()))
    assert loaded.config.training.max_steps == 3
    assert [phase.step for phase in plan_run(loaded).plan.phases] == [1, 2]
    plain = shorten(read_config(in_phases(freeze_config={})))
    assert plain.config.training.max_steps == 2


def test_a_resume_with_another_phase_says_what_differs_in_it(in_phases: Any, launch: Any) -> None:
    config = in_phases()
    run = launch(config)
    later = [PHASES[0], {**PHASES[1], "at": {"step": 5}}]
    other = [{**PHASES[0], "unfreeze_modules": [{"layers": ":1"}]}, PHASES[1]]
    more = [*PHASES, {"at": {"step": 5}, "lr": 1e-4}]
    for phases, place, possible in (
        (later, "freeze_config.phases[1].at.step", "freeze_config.phases[1].at.step: 4 in the run, 5 now"),
        (
            other,
            "freeze_config.phases[0].unfreeze_modules[0].layers",
            'freeze_config.phases[0].unfreeze_modules[0].layers: "-1:" in the run, ":1" now',
        ),
        (more, "freeze_config.phases", "{at: {step: 5}, freeze_modules: [], unfreeze_modules: [], lr: 0.0001}] now"),
    ):
        with pytest.raises(CheckpointError) as caught:
            launch({**config, "freeze_config": {"phases": phases}}, mode="resume")
        (problem,) = caught.value.problems
        assert problem.what == f"the config differs from that of the run in {run.folder}: {place}"
        assert possible in problem.possible
        assert "None" not in problem.possible


def test_other_phases_need_leave_to_go_on_and_lose_nothing(in_phases: Any, launch: Any) -> None:
    config = in_phases()
    run = launch(config)
    shutil.rmtree(run.folder / "checkpoints" / "step-000006")
    (run.folder / "checkpoints" / "latest").unlink()
    other = {**config, "freeze_config": {"phases": PHASES[:1]}}
    with pytest.raises(CheckpointError, match=r"config differs[\s\S]*freeze_config\.phases"):
        launch(other, mode="resume")
    assert Manifest.read(run.folder / "checkpoints" / "step-000005").phase == 2
    lost = {**config, "freeze_config": {}}
    resumed = launch(other, mode="resume", allow_plan_change=True)
    # `best` and other earlier checkpoints of a run that went on with another plan are still of use.
    for step in (1, 2, 5, 6):
        finished = resumed.open(f"step-{step}")
        (score,) = evaluate_run(finished)
        written = {line["step"]: line["validation_loss"] for line in resumed.metrics if "validation_loss" in line}
        assert score.metrics["loss"] == pytest.approx(written.get(step, score.metrics["loss"]), rel=1e-5)
        export_run(finished, "merged", resumed.folder.parent / f"merged-{step}")
    from frostline.recipes.resuming import require_nothing_lost

    with pytest.raises(CheckpointError, match=r"16 parameters have trained so far and would be frozen now"):
        require_nothing_lost(run.folder / "checkpoints" / "step-000005", plan_run(read_config(lost)).plan)
    require_nothing_lost(run.folder / "checkpoints" / "step-000005", plan_run(read_config(other)).plan)
    require_nothing_lost(run.folder / "checkpoints" / "step-000002", plan_run(read_config(lost)).plan)
