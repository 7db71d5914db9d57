"""The run of the demo, killed with SIGKILL in the middle and resumed, beside the same run left alone: equal bytes.

Run by `make demo-kill`.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONFIG = "examples/bbc_lora.yaml"
RUNS = ROOT / "runs" / "demo-kill"
KILL_AFTER_STEPS = 13
TIMEOUT_SECONDS = 300


def command(run: Path, *flags: str) -> list[str]:
    """The train command of both runs: the demo's config with a checkpoint every five steps."""
    overrides = [f"output_dir={run.relative_to(ROOT)}", "checkpoint.every=5"]
    return [str(Path(sys.executable).with_name("frostline")), "train", CONFIG, *overrides, *flags]


def num_steps(run: Path) -> int:
    """Steps that the run has logged so far."""
    log = run / "metrics.jsonl"
    return log.read_text(encoding="utf-8").count('"loss"') if log.exists() else 0


def train_and_kill(run: Path) -> None:
    """Starts the run and sends SIGKILL once it has done `KILL_AFTER_STEPS` steps."""
    process = subprocess.Popen(command(run, "--overwrite"), cwd=ROOT)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while num_steps(run) < KILL_AFTER_STEPS:
        if process.poll() is not None:
            sys.exit(process.returncode or "the run ended before it could be killed")
        if time.monotonic() > deadline:
            process.kill()
            sys.exit("the run did not get far enough in time")
        time.sleep(0.02)
    process.kill()
    process.wait()


def fingerprint(run: Path) -> str:
    """SHA-256 of the final adapter."""
    return hashlib.sha256((run / "checkpoints/latest/adapter/adapter_model.safetensors").read_bytes()).hexdigest()


def main() -> int:
    """Returns the exit status."""
    whole, killed = RUNS / "whole", RUNS / "killed"
    print("1. the run, left alone", flush=True)
    subprocess.run(command(whole, "--overwrite"), cwd=ROOT, check=True)
    print(f"\n2. the same run, killed with SIGKILL after step {KILL_AFTER_STEPS}", flush=True)
    train_and_kill(killed)
    print("\n3. resumed", flush=True)
    subprocess.run(command(killed, "--resume"), cwd=ROOT, check=True)
    first, second = fingerprint(whole), fingerprint(killed)
    print(f"\nsha256 of the final adapter\n  left alone  {first}\n  resumed     {second}")
    print("equal" if first == second else "NOT EQUAL")
    return int(first != second)


if __name__ == "__main__":
    sys.exit(main())
