"""What the terminal shows while a run goes on: a bar on a terminal, plain lines anywhere else.

Knows nothing of files or trackers, and draws at most a few times a second: the processor belongs to the training.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

REFRESH_SECONDS = 0.25
NUM_PLAIN_LINES = 20
NUM_RECENT_STEPS = 10


@dataclass(frozen=True)
class StepReport:
    """One optimizer step: `done` counts it; `seconds` is its wall time, evaluation not included."""

    done: int
    epoch: float
    loss: float
    lr: float
    grad_norm: float
    num_units: int
    seconds: float


class ProgressView(Protocol):
    """A bar or plain lines."""

    def step(self, report: StepReport) -> None: ...

    def line(self, text: str) -> None: ...

    def close(self) -> None: ...


def open_progress(console: Console, *, done: int, total_steps: int, unit: str) -> ProgressView:
    """The view that fits `console`, starting at `done` steps."""
    recent = RecentSteps(total_steps, unit)
    if console.is_terminal and not console.is_dumb_terminal:
        return BarView(console, recent, done)
    return PlainView(console, recent)


class RecentSteps:
    """Loss and rate of the last step; speed and time left from the last few, so that they do not jump."""

    def __init__(self, total_steps: int, unit: str) -> None:
        self.total_steps, self.unit = total_steps, unit
        self._reports: deque[StepReport] = deque(maxlen=NUM_RECENT_STEPS)

    def add(self, report: StepReport) -> None:
        self._reports.append(report)

    def __str__(self) -> str:
        reports = self._reports
        seconds = max(sum(report.seconds for report in reports), 1e-9)
        rate = sum(report.num_units for report in reports) / seconds
        left = (self.total_steps - reports[-1].done) * seconds / len(reports)
        speed = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
        return f"loss {reports[-1].loss:.4f}  lr {reports[-1].lr:.2e}  {speed} {self.unit}/s  {clock(left)} left"


class BarView:
    """A bar in place, redrawn by hand: a refresh thread would compete with the training for the interpreter."""

    def __init__(self, console: Console, recent: RecentSteps, done: int) -> None:
        self._recent = recent
        self._drawn = 0.0
        columns = (
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[numbers]}"),
        )
        self._progress = Progress(*columns, console=console, auto_refresh=False)
        self._task = self._progress.add_task("train", total=recent.total_steps, completed=done, numbers="")
        self._progress.start()

    def step(self, report: StepReport) -> None:
        self._recent.add(report)
        now = time.monotonic()
        if now - self._drawn >= REFRESH_SECONDS or report.done == self._recent.total_steps:
            self._drawn = now
            self._progress.update(self._task, completed=report.done, numbers=str(self._recent), refresh=True)

    def line(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._progress.stop()


class PlainView:
    """About twenty lines for the whole run, for log files and pipes."""

    def __init__(self, console: Console, recent: RecentSteps) -> None:
        self._console, self._recent = console, recent
        self._every = max(1, recent.total_steps // NUM_PLAIN_LINES)
        self._first = True

    def step(self, report: StepReport) -> None:
        self._recent.add(report)
        total = self._recent.total_steps
        if self._first or report.done % self._every == 0 or report.done == total:
            self._first = False
            self.line(f"step {report.done}/{total}  {self._recent}")

    def line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        return


def evaluation_line(done: int, epoch: float, metrics: Mapping[str, float], *, is_best: bool, seconds: float) -> str:
    """The one line that an evaluation prints."""
    numbers = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
    best = "  best so far" if is_best else "" if done else "  before training"
    return f"evaluation at step {done}, epoch {epoch:.3g}: {numbers}  ({clock(seconds)}){best}"


def clock(seconds: float) -> str:
    """`3661.0` -> `1:01:01`, `61.0` -> `1:01`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
