"""Fans one report out to the terminal, `metrics.jsonl` and the trackers.

Knows nothing of models or of how the numbers came about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from frostline.training.metrics_log import MetricsLog
from frostline.training.progress import ProgressView, StepReport, evaluation_line
from frostline.training.trackers import Tracker

MAX_PLAN_LINES = 12


def plan_change_lines(changes: Sequence[str], optimizer: torch.optim.Optimizer) -> list[str]:
    """What a resume under another plan did: its differences, and how many parameters keep their optimizer state."""
    if not changes:
        return []
    shown = list(changes[:MAX_PLAN_LINES])
    if len(changes) > MAX_PLAN_LINES:
        shown.append(f"... and {len(changes) - MAX_PLAN_LINES} more")
    params = [param for group in optimizer.param_groups for param in group["params"]]
    kept = sum(param in optimizer.state for param in params)
    return [*shown, f"optimizer state: {kept} parameters keep theirs, {len(params) - kept} start without"]


class Reporter:
    """Context manager that owns the view, the log and the trackers of one run; closes all of them on exit."""

    def __init__(self, view: ProgressView, metrics_path: Path, trackers: Sequence[Tracker], unit: str) -> None:
        self._view, self._trackers, self._unit = view, trackers, unit
        self._log = MetricsLog(metrics_path)

    def line(self, text: str) -> None:
        """Prints one line above the bar."""
        self._view.line(text)

    def step(self, report: StepReport) -> None:
        """Reports one optimizer step."""
        values = {"loss": report.loss, "lr": report.lr, "grad_norm": report.grad_norm}
        speed = report.num_units / max(report.seconds, 1e-9)
        self._log.write(report.done, {"epoch": report.epoch, **values, f"{self._unit}_per_second": round(speed, 2)})
        for tracker in self._trackers:
            tracker.log(report.done, {f"train/{name}": value for name, value in values.items()})
        self._view.step(report)

    def evaluation(
        self, done: int, epoch: float, metrics: Mapping[str, float], *, is_best: bool, seconds: float
    ) -> None:
        """Reports one evaluation: `metrics` are the numbers of the validation data."""
        named = {f"validation_{name}": value for name, value in metrics.items()}
        self._log.write(done, {"epoch": epoch, **named, "is_best": is_best})
        for tracker in self._trackers:
            tracker.log(done, {f"validation/{name}": value for name, value in metrics.items()})
        self._view.line(evaluation_line(done, epoch, metrics, is_best=is_best, seconds=seconds))

    def close(self) -> None:
        """Closes view, log and trackers, each even when another fails."""
        try:
            self._view.close()
        finally:
            try:
                self._log.close()
            finally:
                for tracker in self._trackers:
                    tracker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
