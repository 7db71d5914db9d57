"""What is printed, on a terminal and elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from frostline.training.progress import StepReport, clock, evaluation_line, open_progress


def report(done: int, seconds: float = 0.5) -> StepReport:
    return StepReport(done, done / 10, loss=1 / done, lr=1e-3, grad_norm=1.0, num_units=32, seconds=seconds)


def test_plain_lines_when_not_a_terminal():
    out = io.StringIO()
    view = open_progress(Console(file=out, width=60), done=0, total_steps=100, unit="examples")
    for done in range(1, 101):
        view.step(report(done))
    view.close()
    lines = out.getvalue().splitlines()
    assert len(lines) == 21
    assert lines[0] == "step 1/100  loss 1.0000  lr 1.00e-03  64 examples/s  0:50 left"
    assert lines[2].startswith("step 10/100  loss 0.1000  "), "the loss of that step, as in metrics.jsonl"
    assert lines[-1].startswith("step 100/100")
    assert lines[-1].endswith("0:00 left")
    assert "\x1b" not in out.getvalue()


def test_a_bar_on_a_terminal_ends_at_the_last_step():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120, color_system=None)
    view = open_progress(console, done=5, total_steps=10, unit="tokens")
    for done in range(6, 11):
        view.step(report(done))
    view.line("evaluation [0] of it")
    view.close()
    assert "10/10" in out.getvalue()
    assert "64 tokens/s" in out.getvalue()
    assert "evaluation [0] of it" in out.getvalue()


def test_drawing_is_rare(monkeypatch: pytest.MonkeyPatch):
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    view = open_progress(console, done=0, total_steps=10_000, unit="tokens")
    before = len(console.file.getvalue())  # type: ignore[attr-defined]
    for done in range(1, 1000):
        view.step(report(done))
    view.close()
    assert len(console.file.getvalue()) - before < 20_000  # type: ignore[attr-defined]


def test_evaluation_line():
    line = evaluation_line(25, 1.0, {"loss": 0.31234, "accuracy": 0.935}, is_best=True, seconds=2.4)
    assert line == "evaluation at step 25, epoch 1: loss 0.3123  accuracy 0.935  (0:02)  best so far"


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3661, "1:01:01")])
def test_clock(seconds: float, text: str):
    assert clock(seconds) == text
