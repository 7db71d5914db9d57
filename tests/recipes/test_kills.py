"""SIGKILL at random moments, also inside a checkpoint write, then resume: the end is that of the run left alone."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from frostline.checkpoint import Manifest, RunFolder

REPOSITORY = Path(__file__).resolve().parents[2]
WORKER = Path(__file__).with_name("kill_worker.py")
TIMEOUT_SECONDS = 300
# One save has about this many; the test of the sample checks that it is not far off.
FSYNCS_OF_A_SAVE = 20


@dataclass
class Victim:
    """One run folder, and the command that starts or resumes it."""

    config: str
    folder: Path
    seconds_per_step: float
    overrides: Sequence[str] = ()

    def start(self, die_at: int = 0) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(WORKER), self.config, str(self.folder), str(die_at), str(self.seconds_per_step)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY / "src")}
        return subprocess.Popen(
            [*command, *self.overrides],
            cwd=REPOSITORY,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def finish(self) -> None:
        """Runs to the end."""
        process = self.start()
        _, errors = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == 0, errors.decode()

    def die_inside_a_save(self, at: int) -> None:
        """Runs until fsync `at` of its saves."""
        process = self.start(at)
        _, errors = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == -signal.SIGKILL, errors.decode()

    def kill_after(self, num_steps: int, seconds: float) -> None:
        """Runs `num_steps` steps and `seconds` more."""
        goal = self.num_steps_saved() + num_steps
        process = self.start()
        deadline = time.monotonic() + TIMEOUT_SECONDS
        try:
            # What the killed run had logged beyond its checkpoint is cut off first.
            while not goal <= self.num_steps_logged() <= goal + 1:
                assert process.poll() is None, process.communicate()[1].decode()
                assert time.monotonic() < deadline
                time.sleep(0.01)
            time.sleep(seconds)
        finally:
            process.kill()
            process.communicate()
        assert process.returncode == -signal.SIGKILL

    def num_steps_logged(self) -> int:
        log = self.folder / "metrics.jsonl"
        return log.read_text(encoding="utf-8").count('"loss"') if log.exists() else 0

    def num_steps_saved(self) -> int:
        """Also checks that what the kill left is whole."""
        if not (self.folder / "checkpoints").is_dir():
            return 0
        newest = RunFolder.read(self.folder).latest()
        if newest is None:
            return 0
        manifest = Manifest.read(newest)
        manifest.verify_files(newest)
        return manifest.step

    def result(self) -> tuple[bytes, list[dict[str, Any]]]:
        """Bytes of the final adapter, and the metrics without times."""
        adapter = (self.folder / "checkpoints/latest/adapter/adapter_model.safetensors").read_bytes()
        lines = (self.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        records = [{k: v for k, v in json.loads(line).items() if not k.endswith("per_second")} for line in lines]
        return adapter, records


def assert_same_end(killed: Victim, whole: Victim) -> None:
    assert killed.result() == whole.result()
    for victim in (killed, whole):
        names = {path.name for path in (victim.folder / "checkpoints").iterdir()}
        assert not [name for name in names if name.startswith(".tmp")]
    best = [victim.folder.joinpath("checkpoints/best").resolve().name for victim in (killed, whole)]
    assert best[0] == best[1]


def dice() -> random.Random:
    """Other moments in every run; pytest shows the seed of a failed one."""
    seed = int(time.time())
    print(f"seed of the kills: {seed}")
    return random.Random(seed)


def test_two_kills(classify: Callable[..., dict[str, Any]], launch: Any, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(classify(training={"max_steps": 12}, checkpoint={"every": 3, "keep": 2})))
    launch(config, name="whole")
    whole = Victim(str(config), tmp_path / "whole", 0.0)
    killed = Victim(str(config), tmp_path / "killed", 0.1)

    chance = dice()
    at = chance.randint(FSYNCS_OF_A_SAVE // 2, FSYNCS_OF_A_SAVE * 3 // 2)
    killed.die_inside_a_save(at)
    killed.kill_after(chance.randint(1, 5), chance.random() * 0.3)
    killed.finish()
    assert_same_end(killed, whole)


@pytest.mark.campaign
def test_ten_kills_of_the_demo(tmp_path: Path) -> None:
    """The run of the demo with smaller batches, so that it has 50 steps; half of the kills hit a checkpoint write."""
    config = str(REPOSITORY / "examples" / "bbc_lora.yaml")
    overrides = ["training.batch_size=16", "data.max_length=32", "checkpoint.every=2", "evaluation.every=20"]
    whole, killed = (Victim(config, tmp_path / name, 0.0, overrides) for name in ("whole", "killed"))
    whole.finish()

    chance = dice()
    for number in range(10):
        if number % 2:
            killed.die_inside_a_save(chance.randint(1, FSYNCS_OF_A_SAVE * 3 // 2))
        else:
            killed.kill_after(chance.randint(1, 5), chance.random())
    killed.finish()
    assert_same_end(killed, whole)
