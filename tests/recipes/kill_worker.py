"""Run by the kill tests in a process of its own: trains; if asked, ends itself with SIGKILL at a counted moment.

    python kill_worker.py CONFIG RUN MOMENT SECONDS_PER_STEP [KEY=VALUE ...]

MOMENT: `never`; `fsync:N`, the last thing this process does is fsync number N inside `save_checkpoint`, counted from 1;
`step:N:SECONDS`, it dies that long after its step number N began, wherever it is then.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from frostline.recipes.config_checks import read_config
from frostline.recipes.runs import plan_run, train_run
from frostline.training import loop


def die_inside_a_save(at: int) -> None:
    """Counts fsyncs inside saves; the one with number `at` does not return."""
    save, fsync = loop.save_checkpoint, os.fsync
    state = {"saving": False, "count": 0}

    def counted(descriptor: int) -> None:
        if state["saving"]:
            state["count"] += 1
            if state["count"] == at:
                os.kill(os.getpid(), signal.SIGKILL)
        fsync(descriptor)

    def watched(*args: Any, **kwargs: Any) -> Path:
        state["saving"] = True
        try:
            return save(*args, **kwargs)
        finally:
            state["saving"] = False

    os.fsync, loop.save_checkpoint = counted, watched


def die_after_a_step(number: int, seconds: float) -> None:
    """Counts steps; `seconds` after the one with that number began, another thread ends the process."""
    accumulate: Callable[..., Any] = loop.accumulate_gradients
    num_steps = 0

    def counted(*args: Any) -> Any:
        nonlocal num_steps
        num_steps += 1
        if num_steps == number:
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return accumulate(*args)

    loop.accumulate_gradients = counted


def slow_down(seconds: float) -> None:
    """Makes the steps of a tiny model long enough to die in the middle of one."""
    accumulate: Callable[..., Any] = loop.accumulate_gradients

    def slow(*args: Any) -> Any:
        time.sleep(seconds)
        return accumulate(*args)

    loop.accumulate_gradients = slow


def main() -> None:
    config, run, moment, seconds_per_step, *overrides = sys.argv[1:]
    kind, *numbers = moment.split(":")
    if float(seconds_per_step):
        slow_down(float(seconds_per_step))
    if kind == "fsync":
        die_inside_a_save(int(numbers[0]))
    elif kind == "step":
        die_after_a_step(int(numbers[0]), float(numbers[1]))
    train_run(plan_run(read_config(config, overrides)), folder=Path(run), mode="resume")


if __name__ == "__main__":
    main()
