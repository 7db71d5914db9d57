"""`frostline train`: new, --resume, --overwrite, --smoke, and what the run folder then holds."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frostline.checkpoint import Manifest, RunFolder


def trained(bench: Any, *args: str) -> Any:
    outcome = bench.run("train", *args)
    assert outcome.status == 0, outcome.err
    return outcome


def weights(run: Path) -> bytes:
    return (run / "adapter" / "adapter_model.safetensors").read_bytes()


def test_a_run_leaves_what_the_design_names(bench: Any) -> None:
    bench.config()
    outcome = trained(bench, "config.yaml")
    run = bench.folder / "run"
    for name in ("config.yaml", "plan.json", "metrics.jsonl", "curves.png", "tokenizer/tokenizer.json"):
        assert (run / name).is_file(), name
    assert (run / "adapter").readlink() == Path("checkpoints/best/adapter")
    step = run / "checkpoints" / "step-000002"
    assert (step / "manifest.json").is_file()
    for name in ("adapter_model.safetensors", "adapter_config.json", "tokenizer.json", "labels.json"):
        assert (step / "adapter" / name).is_file(), name
    assert not list(run.rglob("*.tmp*"))
    assert not [path for path in run.rglob("*") if path.suffix in (".bin", ".pt", ".pkl")]
    assert "2 steps in" in outcome.out
    assert "bit-identical to what was loaded" in outcome.out
    assert "frostline evaluate run" in outcome.out
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [record["step"] for record in records if "loss" in record] == [1, 2]


def test_the_folder_is_named_after_the_config_unless_it_says_one(bench: Any) -> None:
    bench.config("my lora.yaml", output_dir=None)
    trained(bench, "my lora.yaml")
    assert (bench.folder / "runs" / "my lora" / "adapter").is_dir()


def test_the_same_config_trains_the_same_bytes(bench: Any) -> None:
    bench.config()
    trained(bench, "config.yaml", "output_dir=one")
    trained(bench, "config.yaml", "output_dir=two")
    assert weights(bench.folder / "one") == weights(bench.folder / "two")


def test_a_run_folder_that_exists_is_refused(bench: Any, finished: Path) -> None:
    outcome = bench.refused("train", "config.yaml")
    assert "--resume" in outcome.part("possible")
    assert "--overwrite" in outcome.part("possible")


def test_overwrite_starts_again(bench: Any, finished: Path) -> None:
    trained(bench, "config.yaml", "--overwrite", "training.max_steps=1")
    assert [path.name for path in (finished / "checkpoints").glob("step-*")] == ["step-000001"]


def test_overwrite_keeps_the_earlier_run_when_the_new_one_cannot_start(bench: Any, finished: Path) -> None:
    bench.refused("train", "config.yaml", "--overwrite", "peft.target_modules=[quary]")
    bench.refused("train", "config.yaml", "--overwrite", "data.train=nowhere.jsonl")


@pytest.mark.parametrize(
    "override",
    ["device=cuda", "optimizer.groups=[{select: bert.pooler, lr: 0.1}]", "optimizer.lr=1e38"],
)
def test_overwrite_puts_the_earlier_run_back_when_the_new_one_fails_before_its_first_checkpoint(
    bench: Any, finished: Path, override: str
) -> None:
    late = ["training.max_grad_norm=null", "optimizer.name=sgd", "training.max_steps=3", "checkpoint.every=end"]
    options = [*late, "evaluation.every=never"] if "1e38" in override else []
    if override == "device=cuda":
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("this machine has what the config asks for")
    outcome = bench.refused("train", "config.yaml", "--overwrite", override, *options)
    assert "module" in outcome.out, "known only after the plan"
    assert bench.run("evaluate", "run").status == 0


def test_overwrite_leaves_a_folder_that_is_no_run_alone(bench: Any) -> None:
    bench.config()
    bench.write("run/thesis.tex", "years of work")
    outcome = bench.refused("train", "config.yaml", "--overwrite")
    assert "thesis.tex" in outcome.error
    assert "module" not in outcome.out, "known before the plan is made"
    bench.refused("train", "config.yaml", "--resume")
    bench.refused("train", "config.yaml")


def test_resume_goes_on_bit_for_bit(bench: Any, finished: Path) -> None:
    whole = weights(finished)
    shutil.rmtree(finished / "checkpoints" / "step-000002")  # as if the run had been killed after step 1
    outcome = trained(bench, "config.yaml", "--resume")
    assert "resuming from run/checkpoints/step-000001" in outcome.err
    assert weights(finished) == whole
    records = [json.loads(line) for line in (finished / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [record["step"] for record in records if "loss" in record] == [1, 2]


def test_resume_of_a_finished_run_changes_no_weight(bench: Any, finished: Path) -> None:
    before = bench.snapshot(finished / "checkpoints")
    trained(bench, "config.yaml", "--resume")
    assert bench.snapshot(finished / "checkpoints") == before


def test_resume_with_nothing_there_starts(bench: Any) -> None:
    bench.config()
    outcome = trained(bench, "config.yaml", "--resume")
    assert "nothing to resume in run: starting at step 0" in outcome.err
    assert (bench.folder / "run" / "adapter").is_dir()


def test_resume_with_a_changed_config_names_every_key(bench: Any, finished: Path) -> None:
    outcome = bench.refused("train", "config.yaml", "--resume", "optimizer.lr=0.5", "training.seed=3")
    assert "optimizer.lr: 0.001 in the run, 0.5 now" in outcome.part("possible")
    assert "training.seed" in outcome.part("possible")
    assert "module" not in outcome.out, "known before the plan is made"


def test_resume_with_other_freeze_rules_needs_the_flag_and_trains_more_with_it(bench: Any, finished: Path) -> None:
    shutil.rmtree(finished / "checkpoints" / "step-000002")
    RunFolder.open(finished, "resume").close()  # moves the links back
    thaw = "freeze_config.unfreeze_modules=[bert.pooler]"
    assert "--allow-plan-change" in bench.refused("train", "config.yaml", "--resume", thaw).part("do")
    outcome = bench.refused("train", "config.yaml", "--resume", "--allow-plan-change", thaw, "optimizer.lr=0.5")
    assert "freeze_config" not in outcome.part("where")
    outcome = trained(bench, "config.yaml", "--resume", "--allow-plan-change", thaw)
    assert "trains now, not in the checkpoint: bert.pooler.dense.weight" in outcome.err
    assert "optimizer state: 6 parameters keep theirs, 2 start without" in outcome.err
    scored = bench.run("evaluate", "run", "--checkpoint", "latest")
    assert scored.status == 0, scored.err
    again = bench.refused("train", "config.yaml", "--resume", "--allow-plan-change")
    assert "2 parameters have trained so far and would be frozen now: bert.pooler" in again.error
    trained(bench, "config.yaml", "--resume", thaw)


def test_other_adapter_targets_are_refused_before_the_plan_whatever_the_flag(bench: Any, finished: Path) -> None:
    for change in ("peft.target_modules=[query, value]", "peft.exclude_modules=[{layers: 0}]"):
        outcome = bench.refused("train", "config.yaml", "--resume", "--allow-plan-change", change)
        assert change.split("=")[0] in outcome.error
        assert "free to change: output_dir, checkpoint, tracking, freeze_config" in outcome.part("possible")
        assert "module" not in outcome.out, "known before the plan is made"


def test_resume_may_change_how_often_checkpoints_are_written_and_kept(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from frostline.training import loop

    save, saved = loop.save_checkpoint, []

    def stopped(*args: Any, **options: Any) -> Path:
        if len(saved) == 3:
            raise KeyboardInterrupt
        saved.append(save(*args, **options))
        return saved[-1]

    def names() -> list[str]:
        return sorted(path.name for path in Path("run/checkpoints").glob("step-*"))

    bench.config(training={"max_steps": 8}, checkpoint={"every": 1, "keep": 5}, evaluation={"every": "never"})
    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_checkpoint", stopped)
        assert bench.run("train", "config.yaml").status == 130
    assert names() == ["step-000001", "step-000002", "step-000003"]
    trained(bench, "config.yaml", "--resume", "checkpoint.every=2", "checkpoint.keep=2")
    assert names() == ["step-000006", "step-000008"]


def test_resume_with_a_run_config_that_is_gone_or_broken(bench: Any, finished: Path) -> None:
    (finished / "config.yaml").write_text("recipe: [", encoding="utf-8")
    bench.refused("train", "config.yaml", "--resume")
    (finished / "config.yaml").unlink()
    bench.refused("train", "config.yaml", "--resume")


def test_smoke_leaves_nothing_behind(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    bench.config(training={"max_steps": 500}, schedule={"warmup": 100}, evaluation={"every": 50})
    before = bench.snapshot(bench.folder)
    outcome = trained(bench, "config.yaml", "--smoke")
    assert "smoke run: 2 steps, evaluated, saved, reloaded with the same loss" in outcome.out
    assert "bit-identical" in outcome.out
    assert bench.snapshot(bench.folder) == before
    assert not list((tmp_path / "temporary").iterdir())


def test_smoke_of_a_bfloat16_base_that_trains_reloads_with_the_same_loss(bench: Any) -> None:
    model = {"name_or_path": str(bench.model), "dtype": "bfloat16"}
    bench.config(model=model, peft=None, training={"precision": "bf16"}, optimizer={"lr": 0.1})
    assert "reloaded with the same loss" in trained(bench, "config.yaml", "--smoke").out


@pytest.mark.parametrize("test_part", [False, True])
def test_smoke_without_validation_data_still_reloads(bench: Any, test_part: bool) -> None:
    bench.rows("test.jsonl", bench.texts(4, start=100))
    bench.config(data={"validation": None, **({"test": "test.jsonl"} if test_part else {})})
    outcome = trained(bench, "config.yaml", "--smoke")
    assert "no validation data" in outcome.out


def test_freezing_alone_saves_only_what_trained(bench: Any, finished_freeze: Path) -> None:
    from safetensors import safe_open

    with safe_open(str(finished_freeze / "trained" / "model.safetensors"), framework="pt") as file:
        names = list(file.keys())
    assert "classifier.weight" in names
    assert not [name for name in names if "embeddings" in name or "layer.0" in name]
    assert not (finished_freeze / "adapter").exists()


def test_a_symlinked_run_folder_keeps_its_link(bench: Any) -> None:
    (bench.folder / "disk").mkdir()
    (bench.folder / "run").symlink_to("disk")
    bench.config()
    trained(bench, "config.yaml")
    trained(bench, "config.yaml", "--resume")
    trained(bench, "config.yaml", "--overwrite")
    assert (bench.folder / "run").is_symlink()
    assert (bench.folder / "disk" / "adapter" / "adapter_model.safetensors").is_file()
    bench.refused("train", "config.yaml")


def test_resume_looks_at_the_best_checkpoint_too(bench: Any, finished: Path) -> None:
    """Step 1 is made the best one; the run goes on from step 2, which is whole."""
    for step, is_best in ((1, True), (2, False)):
        path = finished / f"checkpoints/step-{step:06d}"
        replace(Manifest.read(path), is_best=is_best).write(path)
    RunFolder.open(finished, "resume").close()  # moves the links
    trained(bench, "config.yaml", "--resume")
    file = finished / "checkpoints/best/adapter/adapter_model.safetensors"
    assert "step-000001" in str(file.resolve())
    file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    outcome = bench.refused("train", "config.yaml", "--resume")
    assert "adapter_model.safetensors was changed" in outcome.error
    assert "step-000001" in outcome.part("where")


def test_resume_of_a_finished_run_without_its_metrics(bench: Any, finished: Path) -> None:
    (finished / "metrics.jsonl").unlink()
    outcome = trained(bench, "config.yaml", "--resume")
    assert "no curves.png: there is nothing to draw" in outcome.err
    assert "frostline evaluate run" in outcome.out
    (finished / "metrics.jsonl").write_bytes(b'{"step": 1}\n\xff\n{"step": 2}\n')
    assert "metrics.jsonl is damaged in line 2" in bench.refused("train", "config.yaml", "--resume").error


def test_resume_with_another_name_of_the_same_device(bench: Any, finished: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        pytest.skip("auto is not the CPU here")
    trained(bench, "config.yaml", "--resume", "device=auto")
    outcome = bench.refused("train", "config.yaml", "--resume", "device=cuda")
    assert "device: cpu in the run, cuda now" in outcome.part("possible")


def test_a_home_folder_in_output_dir(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(bench.folder / "home"))
    bench.config(output_dir="~/run")
    outcome = trained(bench, "config.yaml")
    assert not (bench.folder / "~").exists()
    assert (bench.folder / "home/run/adapter").is_dir()
    assert f"frostline evaluate {bench.folder}/home/run" in outcome.out


@pytest.mark.parametrize(
    ("training", "line"),
    [
        ({"batch_size": 5}, "4 = 20 / 5 x 1 epoch,"),
        ({"batch_size": 8, "epochs": 4}, "12 = 4 epochs x 3 (20 / 8 rounded up),"),
        ({"batch_size": 5, "epochs": 0.6}, "3 = 20 / 5 x 0.6 epochs, rounded up,"),
        ({"batch_size": 8, "epochs": 0.5}, "2 = 0.5 epochs x 3 (20 / 8 rounded up), rounded up,"),
    ],
)
def test_the_plan_counts_steps_truthfully(bench: Any, training: dict[str, Any], line: str) -> None:
    bench.config(training={"max_steps": ..., **training})
    outcome = bench.run("plan", "config.yaml")
    assert f"steps    {line}" in outcome.out, outcome.err or outcome.out
