"""Run by the kill tests in a process of its own: trains; if asked, ends itself with SIGKILL inside a checkpoint write.

    python kill_worker.py CONFIG RUN DIE_AT SECONDS_PER_STEP [KEY=VALUE ...]

DIE_AT: which fsync inside `save_checkpoint` is the last thing this process does, counted from 1; 0 lives.
"""

from __future__ import annotations

import os
import signal
import sys
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


def slow_down(seconds: float) -> None:
    """Gives the parent time to hit the middle of a step of a tiny model."""
    accumulate: Callable[..., Any] = loop.accumulate_gradients

    def slow(*args: Any) -> Any:
        time.sleep(seconds)
        return accumulate(*args)

    loop.accumulate_gradients = slow


def main() -> None:
    config, run, die_at, seconds, *overrides = sys.argv[1:]
    if int(die_at):
        die_inside_a_save(int(die_at))
    if float(seconds):
        slow_down(float(seconds))
    train_run(plan_run(read_config(config, overrides)), folder=Path(run), mode="resume")


if __name__ == "__main__":
    main()
