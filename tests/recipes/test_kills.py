"""SIGKILL at random moments, also inside a checkpoint write, then resume: the end is that of the run left alone."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from frostline.checkpoint import Manifest, RunFolder

REPOSITORY = Path(__file__).resolve().parents[2]
WORKER = Path(__file__).with_name("kill_worker.py")
TIMEOUT_SECONDS = 300
# One save has about this many. Were it far fewer, a victim would outlive its run, and `die_inside_a_save` fails.
FSYNCS_OF_A_SAVE = 20


@dataclass
class Victim:
    """One run folder, and the command that starts or resumes it."""

    config: str
    folder: Path
    seconds_per_step: float
    overrides: Sequence[str] = ()

    def run(self, moment: str) -> tuple[int, str]:
        """Starts or resumes it; exit status and what it wrote to stderr. `moment`: see the worker."""
        command = [sys.executable, str(WORKER), self.config, str(self.folder), moment, str(self.seconds_per_step)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY / "src")}
        done = subprocess.run(
            [*command, *self.overrides],
            cwd=REPOSITORY,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        return done.returncode, done.stderr.decode()

    def finish(self) -> None:
        """Runs to the end."""
        status, errors = self.run("never")
        assert status == 0, errors

    def die(self, moment: str) -> None:
        """Runs until `moment`; what the kill leaves is whole."""
        status, errors = self.run(moment)
        assert status == -signal.SIGKILL, errors
        if (self.folder / "checkpoints").is_dir():
            newest = RunFolder.read(self.folder).latest()
            if newest is not None:
                Manifest.read(newest).verify_files(newest)

    def die_inside_a_save(self, at: int) -> None:
        """Runs until fsync `at` of its saves."""
        self.die(f"fsync:{at}")

    def die_after(self, num_steps: int, seconds: float) -> None:
        """Runs until `seconds` after its step number `num_steps` began."""
        self.die(f"step:{num_steps}:{seconds}")

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
    """Moments of the kills: the same in every run, or others with KILL_SEED; pytest shows the seed of a failed one."""
    seed = int(os.environ.get("KILL_SEED", "0"))
    print(f"KILL_SEED={seed} repeats these kills")
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
    killed.die_after(chance.randint(1, 5), chance.random() * 0.3)
    killed.finish()
    assert_same_end(killed, whole)


def test_case_38_kills_before_at_and_after_the_switch_to_a_phase(
    classify: Callable[..., dict[str, Any]], launch: Any, tmp_path: Path
) -> None:
    """Row 38: a phase begins at step 2; killed in step 1, in step 2 (resumed exactly at the switch), and in step 3."""
    phases = [{"at": {"step": 2}, "unfreeze_modules": [{"layers": "-1:"}], "lr": 2e-3}]
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(classify(checkpoint={"every": 1}, freeze_config={"phases": phases})))
    launch(config, name="whole")
    whole = Victim(str(config), tmp_path / "whole", 0.0)
    killed = Victim(str(config), tmp_path / "killed", 0.2)
    for done in (1, 2, 3):
        killed.die_after(2, 0.05)  # in the second step of this start, while it sleeps
        newest = RunFolder.read(killed.folder).latest()
        assert newest is not None
        manifest = Manifest.read(newest)
        assert (manifest.step, manifest.phase) == (done, int(done > 2))
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
            killed.die_after(chance.randint(1, 5), chance.random())
    killed.finish()
    assert_same_end(killed, whole)
