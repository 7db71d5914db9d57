"""Run folders and checkpoints that cannot be used: taken, locked, foreign, truncated, edited, pickled."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LATEST = Path("run/checkpoints/step-000002")
ADAPTER = LATEST / "adapter/adapter_model.safetensors"


@pytest.mark.parametrize("mode", [(), ("--resume",), ("--overwrite",)], ids=str)
def test_an_output_dir_that_cannot_be_a_folder_is_known_before_the_plan(bench: Any, mode: tuple[str, ...]) -> None:
    bench.write("file", "x")
    (bench.folder / "dangling").symlink_to("nowhere")
    for place in ("file", "file/inside", "dangling"):
        bench.config(output_dir=place)
        outcome = bench.refused("train", "config.yaml", *mode)
        assert outcome.part("where").startswith("output_dir")
        assert "module" not in outcome.out, "known before the plan is made"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="only Linux has a place where no folder can be made")
def test_an_output_dir_where_the_file_system_makes_no_folder(bench: Any) -> None:
    bench.config(output_dir="/proc/frostline/run")
    outcome = bench.refused("train", "config.yaml")
    assert "/proc/frostline" in outcome.part("where")
    assert outcome.part("do").startswith("choose another place")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_output_dir_that_cannot_be_written(bench: Any) -> None:
    (bench.folder / "locked").mkdir(mode=0o500)
    bench.config(output_dir="locked/run")
    assert bench.refused("train", "config.yaml").part("where") == "output_dir"


def test_an_empty_folder_stays_empty_when_the_start_fails(bench: Any) -> None:
    (bench.folder / "run").mkdir()
    for mode in ((), ("--resume",), ("--overwrite",)):
        bench.config(data={"train": "nowhere.jsonl"})
        bench.refused("train", "config.yaml", *mode)
        assert not list((bench.folder / "run").iterdir()), "not even a lock"


def test_two_writers(bench: Any, finished: Path, repository: Path) -> None:
    """The lock is held by another process, which keeps the first writer of the folder."""
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from frostline.checkpoint import RunFolder\n"
            "with RunFolder.open('run', 'resume'): print('held', flush=True); sys.stdin.read()",
        ],
        env={**os.environ, "PYTHONPATH": str(repository / "src")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    with holder.stdin, holder.stdout:
        assert holder.stdout.readline() == b"held\n"
        for mode in ("--resume", "--overwrite"):
            outcome = bench.refused("train", "config.yaml", mode)
            assert f"process {holder.pid} on " in outcome.error
            assert "module" not in outcome.out, "known before the plan is made"
        assert bench.run("evaluate", "run").status == 0, "reading needs no lock"
        holder.stdin.close()
        holder.wait(60)
    assert bench.run("train", "config.yaml", "--resume").status == 0


def test_a_checkpoint_of_another_base(bench: Any, finished: Path) -> None:
    other = bench.make_bert(bench.folder / "other", seed=1)
    config = (bench.folder / "config.yaml").read_text(encoding="utf-8").replace(str(bench.model), str(other))
    (finished / "config.yaml").write_text(config, encoding="utf-8")
    for args in (("evaluate", "run"), ("predict", "run"), ("export", "run", "out", "--to", "merged")):
        outcome = bench.refused(*args, stdin=b"good film\n")
        assert f"belongs to another base: {other} has other weights" in outcome.error
    (bench.folder / "config.yaml").write_text(config, encoding="utf-8")
    assert "belongs to another base" in bench.refused("train", "config.yaml", "--resume").error


def test_a_base_whose_config_has_changed(bench: Any, finished: Path) -> None:
    """The same weights compute something else with it."""
    config = json.loads((bench.model / "config.json").read_text(encoding="utf-8"))
    folder = shutil.copytree(bench.model, bench.folder / "base")
    text = (finished / "config.yaml").read_text(encoding="utf-8").replace(str(bench.model), "base")
    (finished / "config.yaml").write_text(text, encoding="utf-8")
    bench.config(model="base")
    free = {"transformers_version": "9", "use_cache": False, "id2label": {"0": "x", "1": "y"}}
    (folder / "config.json").write_text(json.dumps({**config, **free}), encoding="utf-8")
    assert bench.run("evaluate", "run").status == 0
    (folder / "config.json").write_text(json.dumps({**config, "hidden_act": "relu"}), encoding="utf-8")
    before = bench.snapshot(finished)
    for args in (("evaluate", "run"), ("train", "config.yaml", "--resume"), ("export", "run", "out", "--to", "merged")):
        outcome = bench.refused(*args)
        assert "another config: hidden_act is " in outcome.error
        assert "gelu" in outcome.part("possible")
    assert bench.snapshot(finished) == before


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif how == "edited":
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif how == "emptied":
        path.write_bytes(b"")
    elif how == "pickled":
        path.write_bytes(pickle.dumps({"weight": [1.0]}))
    else:
        path.unlink()


HOW = ("truncated", "edited", "emptied", "pickled", "deleted")


@pytest.mark.parametrize("how", HOW)
def test_a_damaged_adapter_file(bench: Any, finished: Path, how: str) -> None:
    damage(ADAPTER, how)
    for args in (
        ("evaluate", "run"),
        ("predict", "run"),
        ("export", "run", "out"),
        ("inspect", "run", "--check"),
        ("train", "config.yaml", "--resume"),
    ):
        outcome = bench.refused(*args, stdin=b"good film\n")
        assert "adapter_model.safetensors" in outcome.error
    assert bench.run("evaluate", "run", "--checkpoint", "step-1").status == 0, "the other checkpoint is whole"


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    "name", ["state/random.json", "state/optimizer.json", "plan.json", "adapter/adapter_config.json"]
)
def test_resume_from_a_checkpoint_with_a_damaged_file(bench: Any, finished: Path, name: str, how: str) -> None:
    damage(LATEST / name, how)
    assert Path(name).name in bench.refused("train", "config.yaml", "--resume").error


@pytest.mark.parametrize("how", ["truncated", "emptied", "pickled", "edited"])
def test_a_damaged_manifest(bench: Any, finished: Path, how: str) -> None:
    damage(LATEST / "manifest.json", "truncated" if how == "edited" else how)
    for args in (("evaluate", "run"), ("inspect", "run"), ("train", "config.yaml", "--resume")):
        assert "manifest.json" in bench.refused(*args).error
    assert bench.run("evaluate", "run", "--checkpoint", "step-1").status == 0


def test_a_damaged_manifest_is_in_the_way_of_its_own_checkpoint_only(bench: Any, finished: Path) -> None:
    checkpoints = finished / "checkpoints"
    for step, is_best in ((1, True), (2, False)):
        path = checkpoints / f"step-{step:06d}" / "manifest.json"
        record = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**record, "is_best": is_best}), encoding="utf-8")
    (checkpoints / "best").unlink()
    (checkpoints / "best").symlink_to("step-000001")
    damage(LATEST / "manifest.json", "truncated")
    outcome = bench.run("evaluate", "run")
    assert outcome.status == 0, outcome.err
    assert "step-000001" in outcome.out
    outcome = bench.refused("train", "config.yaml", "--resume")
    assert "delete step-000002/" in outcome.part("do")
    shutil.rmtree(LATEST)
    assert bench.run("train", "config.yaml", "--resume").status == 0
    assert LATEST.is_dir()


def test_resume_of_a_finished_run_sweeps_what_a_kill_left(bench: Any, finished: Path) -> None:
    shutil.copytree(LATEST, finished / "checkpoints/.tmp-removed-step-000001")
    bench.config()
    assert bench.run("train", "config.yaml", "--resume").status == 0
    assert not list(finished.rglob(".tmp-*"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format_version", 99),
        ("format_version", "x"),
        ("step", "two"),
        ("files", 5),
        ("files", {"adapter/labels.json": 5}),
        ("base", None),
        ("versions", []),
        ("epoch", "x"),
        ("plan_digest", 7),
        ("notes", None),
        ("without_state", 5),
    ],
)
def test_a_manifest_with_other_kinds_of_values(bench: Any, finished: Path, key: str, value: object) -> None:
    path = LATEST / "manifest.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**record, key: value}), encoding="utf-8")
    for args in (("evaluate", "run"), ("inspect", "run"), ("train", "config.yaml", "--resume")):
        bench.refused(*args)


def test_a_pickle_beside_where_safetensors_is_expected(bench: Any, finished: Path) -> None:
    ADAPTER.unlink()
    (ADAPTER.parent / "adapter_model.bin").write_bytes(pickle.dumps({"weight": [1.0]}))
    shutil.copytree(ADAPTER.parent, "shared")
    assert "pickle" in bench.refused("inspect", "shared").error


def test_a_damaged_file_of_a_run_without_adapter(bench: Any, finished_freeze: Path) -> None:
    path = LATEST / "trained/model.safetensors"
    for how in HOW:
        kept = path.read_bytes()
        damage(path, how)
        for args in (("evaluate", "run"), ("train", "config.yaml", "--resume"), ("inspect", "run", "--check")):
            bench.refused(*args)
        path.write_bytes(kept)


@pytest.mark.parametrize(
    "text", ["{}", "[]", "{", '{"peft_type": "LORA"}', '{"peft_type": "IA3"}', '{"peft_type": "LORA", "r": "x"}']
)
def test_inspect_an_adapter_with_a_config_that_cannot_be_used(bench: Any, finished: Path, text: str) -> None:
    shutil.copytree(finished / "adapter", bench.folder / "shared")
    bench.write("shared/adapter_config.json", text)
    bench.refused("inspect", "shared")


def test_resume_with_another_plan_prints_the_difference(bench: Any, finished: Path) -> None:
    """The config of the run was edited together with the user's: only the plan in the checkpoint still knows."""
    text = (bench.folder / "config.yaml").read_text(encoding="utf-8").replace("- query", "- value")
    for path in (bench.folder / "config.yaml", finished / "config.yaml"):
        path.write_text(text, encoding="utf-8")
    outcome = bench.refused("train", "config.yaml", "--resume")
    assert "query" in outcome.part("possible")
    assert "value" in outcome.part("possible")
    assert "plan" in bench.refused("evaluate", "run").error


def test_resume_over_other_data(bench: Any, finished: Path) -> None:
    other = bench.rows("other.jsonl", bench.texts(40))
    for path in (bench.folder / "config.yaml", finished / "config.yaml"):
        path.write_text(path.read_text(encoding="utf-8").replace(str(bench.data), str(other)), encoding="utf-8")
    assert "num_examples" in bench.refused("train", "config.yaml", "--resume").error
