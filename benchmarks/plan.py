"""Times a plan of 46,000 linears against nemo-automodel's freezing and peft's injection, and the command from cold.

    python benchmarks/plan.py [--rounds 3] [--part freeze|adapters|command|all]

The model is `large_moe.py` on the meta device: 60 layers of 256 experts. The sides take turns (A B B A ...), so that a
machine whose speed drifts slows both: freezing, which can be done again, several times in one process for each round,
each side on a model of its own; injection in processes of their own. Only the calls are on the clock, not the imports
and the building of the model. Reported are medians with their range, and ratios theirs / ours, turn by turn: 10x means
that we take a tenth of their time. CPU time says the same on a machine that is busy with other things. A peer that is
not installed is said, with how to install it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PEERS = {
    "nemo_automodel": "pip install --no-deps nemo-automodel==0.7.0",
    "peft": "pip install peft",
}
# The same block for both sides: a few subtrees, and a glob that reaches every module of the layers.
BLOCKS: dict[str, dict[str, Any]] = {
    "layers": {"freeze_modules": [{"glob": "model.layers.*"}], "unfreeze_modules": [{"glob": "*.self_attn"}]},
    "subtrees": {"freeze_modules": [{"path": "model"}], "unfreeze_modules": [{"glob": "*.self_attn"}]},
}
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "router", "gate_proj", "up_proj", "down_proj"]
COMMAND = ["-c", "from frostline.cli import console_script; console_script()", "plan", "benchmarks/large_moe.yaml"]


def build() -> Any:
    """The model without values."""
    import large_moe
    import torch

    with torch.device("meta"):
        return large_moe.build()


def freeze_ours(block: str) -> Callable[[], str]:
    """Resolve and apply."""
    from frostline import resolve

    model = build()

    def run() -> str:
        plan = resolve(model, freeze_config=BLOCKS[block])
        plan.apply(model)
        return f"{len(plan.trainable)} of {len(plan.decisions)} parameters train"

    return run


def freeze_theirs(block: str) -> Callable[[], str]:
    """Their function sets the flags; there is no plan."""
    from nemo_automodel.components.utils.model_utils import apply_parameter_freezing

    model = build()

    def run() -> str:
        apply_parameter_freezing(model, BLOCKS[block])
        return ""

    return run


def adapters_ours(_: str) -> Callable[[], str]:
    """Inject, resolve and apply: LoRA on every linear but the head."""
    from frostline import LoRA, prepare

    model = build()

    def run() -> str:
        _, plan = prepare(model, peft=LoRA(rank=8, exclude_modules=["lm_head"]))
        return f"{sum(path.endswith('lora_A.default.weight') for path in plan.trainable)} linears adapted"

    return run


def adapters_theirs(_: str) -> Callable[[], str]:
    """The same linears by peft."""
    from peft import LoraConfig, inject_adapter_in_model

    model = build()

    def run() -> str:
        config = LoraConfig(r=8, lora_alpha=16, target_modules=LINEARS)
        inject_adapter_in_model(config, model, low_cpu_mem_usage=True)
        return f"{sum(hasattr(module, 'lora_A') for module in model.modules())} linears adapted"

    return run


SIDES = {
    "freeze": (freeze_ours, freeze_theirs, "nemo_automodel", "nemo-automodel 0.7"),
    "adapters": (adapters_ours, adapters_theirs, "peft", "peft"),
}
TURNS = {"freeze": 5, "adapters": 1}  # in one process; adapters can be injected but once


def clock(run: Callable[[], str]) -> dict[str, Any]:
    """Seconds, seconds of CPU and memory that one call takes."""
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started, started_cpu = time.perf_counter(), time.process_time()
    done = run()
    seconds, cpu = time.perf_counter() - started, time.process_time() - started_cpu
    added = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {"seconds": seconds, "cpu": cpu, "added_mb": added, "done": done}


def measure_here(part: str, sides: str, block: str) -> None:
    """In a process of its own: `TURNS` calls of each side, in changing order; prints a line of JSON."""
    runs = {side: SIDES[part][index](block) for index, side in enumerate(("ours", "theirs")) if side in sides}
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in runs}
    for turn in range(TURNS[part]):
        for side in list(runs)[:: -1 if turn % 2 else 1]:
            found[side].append(clock(runs[side]))
    print(json.dumps(found))


def measure(part: str, sides: str, block: str) -> dict[str, list[dict[str, Any]]] | None:
    """The sides in a fresh process; None where the library of one is not installed."""
    command = [sys.executable, str(HERE / "plan.py"), "--sides", sides, "--part", part, "--block", block]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        if f"No module named '{SIDES[part][2]}" in done.stderr:
            return None
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure_command() -> dict[str, float]:
    """`frostline plan` on the config, from a cold start: seconds and peak memory of its process."""
    started = time.perf_counter()
    with subprocess.Popen([sys.executable, *COMMAND], cwd=HERE.parent, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"frostline plan ended with status {process.returncode}")
    cpu = usage.ru_utime + usage.ru_stime
    return {"seconds": seconds, "cpu": cpu, "peak_mb": usage.ru_maxrss / 1024}


def spread(values: list[float], digits: int, unit: str = "") -> str:
    """`median (min to max)`."""
    low, middle, high = (f"{value:.{digits}f}" for value in (min(values), statistics.median(values), max(values)))
    return f"{middle}{unit} ({low} to {high})"


def compare(part: str, block: str, rounds: int, title: str) -> None:
    """Print one comparison."""
    _, _, module, name = SIDES[part]
    ours: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    together = TURNS[part] > 1 and importlib.util.find_spec(module) is not None
    for _ in range(rounds):
        for sides in ["ours,theirs"] if together else ["ours", "theirs"]:
            found = measure(part, sides, block) or {}
            ours += found.get("ours", [])
            theirs += found.get("theirs", [])
    print(f"\n{title}")
    for label, runs in (("Frostline", ours), (name, theirs)):
        if not runs:
            print(f"  {label:<20} is not installed: {PEERS[module]}")
            continue
        seconds, cpu, added = ([run[key] for run in runs] for key in ("seconds", "cpu", "added_mb"))
        columns = [spread(seconds, 2, " s"), spread(cpu, 2, " s of CPU"), spread(added, 0, " MB more"), runs[0]["done"]]
        print(f"  {label:<20} {columns[0]:<26} {columns[1]:<32} {columns[2]:<28} {columns[3]}".rstrip())
    if theirs:
        pairs = list(zip(ours, theirs, strict=True))
        ratios = [[other[key] / own[key] for own, other in pairs] for key in ("seconds", "cpu")]
        columns = [spread(values, 2, "x") for values in ratios]
        print(f"  {'theirs / ours':<20} {columns[0]:<26} {columns[1]}", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--part", choices=["freeze", "adapters", "command", "all"], default="all")
    parser.add_argument("--sides", help=argparse.SUPPRESS)
    parser.add_argument("--block", choices=list(BLOCKS), default="layers", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.sides:
        measure_here(arguments.part, arguments.sides, arguments.block)
        return
    rounds, part = arguments.rounds, arguments.part
    load = ""
    with contextlib.suppress(OSError):
        load = f", load {os.getloadavg()[0]:.1f}"
    cores = f"{os.cpu_count()} cores{load}"
    print(f"{platform.processor() or platform.machine()}, {cores}, {rounds} rounds: median (min to max)", flush=True)
    if part in ("freeze", "all"):
        compare("freeze", "layers", rounds, "resolve + apply, a glob over all modules of the layers")
        compare("freeze", "subtrees", rounds, "resolve + apply, a path and a glob of 60 modules")
    if part in ("adapters", "all"):
        compare("adapters", "layers", rounds, "inject + resolve + apply, LoRA r8 on every linear but the head")
    if part in ("command", "all"):
        runs = [measure_command() for _ in range(rounds)]
        print("\nfrostline plan benchmarks/large_moe.yaml, from a cold start")
        seconds, cpu, peak = ([run[key] for run in runs] for key in ("seconds", "cpu", "peak_mb"))
        columns = [spread(seconds, 2, " s"), spread(cpu, 2, " s of CPU"), spread(peak, 0, " MB at most")]
        print(f"  {'Frostline':<20} {columns[0]:<26} {columns[1]:<32} {columns[2]}")


if __name__ == "__main__":
    main()
