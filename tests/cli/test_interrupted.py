"""Runs that end in the middle: a loss that is not a number, a full disk, Ctrl-C."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

EVERY_STEP = {"checkpoint": {"every": 1, "keep": 5}, "training": {"max_steps": 6}}


def steps(run: Path) -> list[str]:
    return sorted(path.name for path in run.glob("checkpoints/step-*"))


def leftovers(run: Path) -> list[Path]:
    return [path for path in run.rglob("*") if ".tmp" in path.name]


# ---- a loss that is not a number


def test_a_loss_that_is_not_finite_names_the_step_and_keeps_the_last_good_checkpoint(bench: Any) -> None:
    bench.config(optimizer={"name": "sgd", "lr": 1e30}, peft=None, **EVERY_STEP)
    outcome = bench.run("train", "config.yaml", "training.max_grad_norm=null", "evaluation.every=never")
    bench.require_refusal(outcome)
    run = bench.folder / "run"
    good = steps(run)
    assert good, outcome.err
    assert f"step {len(good)}" in outcome.part("where")
    assert good[-1] in outcome.part("where")
    assert not leftovers(run)
    assert bench.run("inspect", "run", "--check").status == 0


# ---- a full disk


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """The kernel refuses every write beyond `num_bytes` of a file, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("num_bytes", [0, 100, 500, 1_200, 2_000, 4_000, 8_000, 16_000])
def test_no_room_for_one_file_or_another_leaves_no_folder(bench: Any, num_bytes: int) -> None:
    bench.config()
    before = bench.snapshot(bench.folder)
    with largest_file(num_bytes):
        outcome = bench.run("train", "config.yaml")
    bench.require_refusal(outcome)
    assert "the disk is full" in outcome.error
    if not steps(bench.folder / "run"):
        assert bench.snapshot(bench.folder) == before
    assert not leftovers(bench.folder)


def test_a_disk_that_fills_up_keeps_the_earlier_checkpoint_and_resumes(bench: Any, monkeypatch: Any) -> None:
    from frostline.checkpoint import save

    original, calls = save.save_optimizer, []

    def full_at_the_third(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(*args)

    bench.config(**EVERY_STEP)
    monkeypatch.setattr(save, "save_optimizer", full_at_the_third)
    outcome = bench.run("train", "config.yaml")
    bench.require_refusal(outcome)
    assert "the disk is full" in outcome.error
    assert "--resume" in outcome.part("do")
    assert steps(bench.folder / "run") == ["step-000001", "step-000002"]
    assert not leftovers(bench.folder)
    assert bench.run("train", "config.yaml", "--resume").status == 0
    assert steps(bench.folder / "run")[-1] == "step-000006"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a file that is always full")
def test_no_room_for_the_metrics(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from frostline.training import loop

    monkeypatch.setattr(loop, "truncate_to", lambda path, step: path.symlink_to("/dev/full"))
    bench.config()
    outcome = bench.refused("train", "config.yaml")
    assert "the disk is full: metrics.jsonl" in outcome.error


def fill(folder: Path) -> None:
    """Write a file `filler` until the disk takes no more."""
    with open(folder / "filler", "wb", buffering=0) as stream, suppress(OSError):
        while True:
            stream.write(b"x" * 4_096)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small disk needs rights that this user lacks")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_disk_that_is_really_full(bench: Any, small_disk: Path) -> None:
    """256 kB: some checkpoints fit, and what is there at the end is whole."""
    run = small_disk / "run"
    bench.config(output_dir=str(run), training={"max_steps": 40}, checkpoint={"every": 1, "keep": 40})
    outcome = bench.run("train", "config.yaml")
    bench.require_refusal(outcome)
    assert "the disk is full" in outcome.error
    assert "MB are free" in outcome.part("possible")
    assert steps(run)
    assert not leftovers(run)
    assert bench.run("inspect", run, "--check").status == 0
    before = bench.snapshot(small_disk)
    for target in ("peft", "merged"):
        fill(small_disk)
        outcome = bench.run("export", run, small_disk / "new" / "out", "--to", target)
        bench.require_refusal(outcome)
        assert "the disk is full" in outcome.error
        (small_disk / "filler").unlink()
        assert bench.snapshot(small_disk) == before


# ---- Ctrl-C


def test_ctrl_c_before_the_first_checkpoint_leaves_nothing(bench: Any, monkeypatch: Any) -> None:
    from frostline.training import loop

    def interrupt(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "accumulate_gradients", interrupt)
    bench.config()
    before = bench.snapshot(bench.folder)
    outcome = bench.run("train", "config.yaml")
    assert outcome.status == 130
    assert "Traceback" not in outcome.err
    assert "interrupted before the first checkpoint: nothing was saved\n" in outcome.err
    assert "--resume" not in outcome.err
    assert bench.snapshot(bench.folder) == before


def test_ctrl_c_says_what_is_saved_what_is_lost_and_how_to_go_on(bench: Any, monkeypatch: Any) -> None:
    """Steps 1 and 2 are done and logged, 1 is saved; a run that should replace it and has saved nothing is not it."""
    from frostline.training import loop

    original, calls = loop.accumulate_gradients, []

    def interrupt_the_third(*args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*args, **options)

    bench.config(checkpoint={"every": 1, "keep": 5}, training={"max_steps": 1})
    assert bench.run("train", "config.yaml").status == 0
    before = bench.snapshot(bench.folder)
    longer = ["training.max_steps=6", "checkpoint.every=3", "evaluation.every=never"]
    monkeypatch.setattr(loop, "accumulate_gradients", interrupt_the_third)
    outcome = bench.run("train", "config.yaml", *longer, "--overwrite")
    assert outcome.status == 130
    assert "nothing was saved; the earlier run in run is as it was\n" in outcome.err
    assert bench.snapshot(bench.folder) == before

    monkeypatch.setattr(loop, "accumulate_gradients", original)
    calls.clear()
    bench.config(checkpoint={"every": 2}, training={"max_steps": 6}, output_dir="other dir")

    def interrupt_the_fourth(*args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return original(*args, **options)

    monkeypatch.setattr(loop, "accumulate_gradients", interrupt_the_fourth)
    outcome = bench.run("train", "config.yaml", "evaluation.every=never", "data.columns={text: text}")
    assert outcome.status == 130
    assert outcome.err.endswith(
        "interrupted at step 3: step 2 is saved, 1 step will be done again\n"
        "  go on with: frostline train config.yaml evaluation.every=never 'data.columns={text: text}' --resume\n"
    )


def test_ctrl_c_in_a_real_process_keeps_the_newest_checkpoint(bench: Any, repository: Path) -> None:
    bench.config(training={"max_steps": 5_000}, checkpoint={"every": 5, "keep": 2}, evaluation={"every": "never"})
    process = subprocess.Popen(
        [sys.executable, "-c", "import frostline.cli; frostline.cli.main()", "train", "config.yaml"],
        env={**os.environ, "PYTHONPATH": str(repository / "src")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # where the tests run in the background
    )
    run, limit = bench.folder / "run", time.monotonic() + 90
    while not (run / "checkpoints/latest").exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < limit, "no checkpoint in 90 s"
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "--resume" in err
    assert not leftovers(run)
    done = int(steps(run)[-1].removeprefix("step-"))
    # A shorter run than planned cannot be resumed: the length is part of what is computed.
    outcome = bench.run("train", "config.yaml", "--resume", f"training.max_steps={done + 1}")
    bench.require_refusal(outcome)
    assert "training.max_steps" in outcome.error
    assert bench.run("inspect", "run", "--check").status == 0
    logged = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert logged == list(range(1, len(logged) + 1))


# ---- what a resumed run shows


def test_a_resume_in_a_later_phase_shows_what_trains_now(bench: Any) -> None:
    """Row 38: the table of a resumed run is not that of the start."""
    phases = [{"at": {"step": 2}, "unfreeze_modules": [{"layers": "1"}]}]
    bench.config(
        peft=None,
        freeze_config={"freeze_modules": ["bert"], "phases": phases},
        training={"max_steps": 4},
        checkpoint={"every": 1, "keep": 5},
    )
    first = bench.run("train", "config.yaml")
    assert first.status == 0, first.err
    assert "in force" not in first.out
    start = next(line for line in first.out.splitlines() if line.startswith("trains "))
    for name in ("step-000004", "step-000003"):  # as after a kill at step 2, where phase 1 begins
        shutil.rmtree(bench.folder / "run/checkpoints" / name)
    for link in ("latest", "best"):
        (bench.folder / "run/checkpoints" / link).unlink()
        (bench.folder / "run/checkpoints" / link).symlink_to("step-000002")
    again = bench.run("train", "config.yaml", "--resume")
    assert again.status == 0, again.err
    assert "phase    1 in force: the table and `trains` are those of this phase" in again.out
    now = next(line for line in again.out.splitlines() if line.startswith("trains "))
    assert now != start
    later = next(line for line in first.out.splitlines() if line.startswith("phase "))
    assert later.endswith(f"then {now.split()[1]} train")
