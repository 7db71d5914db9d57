"""Times Frostline against its named peer, `transformers.Trainer` + `peft`, on the same model, data, batch and steps.

    python benchmarks/run.py [--pairs 3] [--case classification|chat|all]

Each side runs in a process of its own, in turn (A B A B ...), so that a machine whose speed drifts slows both. Reported
are ratios ours / theirs, pair by pair: wall time from the prepared model to the saved adapter, and the peak memory of
the whole process. A ratio of at most 1.0 means that we are not slower and not larger.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import cases

HERE = Path(__file__).resolve().parent


def measure(case: str, side: str) -> dict[str, float]:
    """Run one side in a fresh process: its seconds, peak memory in MB, and last training loss."""
    with tempfile.TemporaryDirectory(prefix="frostline-bench-") as folder:
        command = [sys.executable, str(HERE / f"side_{side}.py"), case, folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
        return json.loads(done.stdout.splitlines()[-1])


def spread(values: list[float], digits: int) -> str:
    """`median (min to max)`."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main() -> None:
    """Print one table for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--case", choices=[*cases.CASES, "all"], default="all")
    arguments = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {arguments.pairs} pairs, one warm-up each")
    for name in cases.CASES if arguments.case == "all" else [arguments.case]:
        case = cases.CASES[name]
        ours: list[dict[str, float]] = []
        theirs: list[dict[str, float]] = []
        measure(name, "frostline"), measure(name, "trainer")  # fills the disk cache; not counted
        for _ in range(arguments.pairs):
            ours.append(measure(name, "frostline"))
            theirs.append(measure(name, "trainer"))
        print(f"\n{name}: {case.description}")
        print(f"{'':<18}{'Frostline':>28}{'Trainer + peft':>28}{'ratio':>28}")
        for key, label, digits in (("seconds", "time, s", 1), ("peak_mb", "peak memory, MB", 0)):
            ratios = [a[key] / b[key] for a, b in zip(ours, theirs, strict=True)]
            columns = [spread([run[key] for run in side], digits) for side in (ours, theirs)]
            print(f"{label:<18}{columns[0]:>28}{columns[1]:>28}{spread(ratios, 2):>28}")
        losses = f"{ours[0]['loss']:.3f} and {theirs[0]['loss']:.3f}"
        print(f"mean training loss of the same batches: {losses}")
        print("(initial factors and dropout are drawn apart, and Trainer's warm-up starts at 0)")


if __name__ == "__main__":
    main()
