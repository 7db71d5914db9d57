"""curves.png from metrics.jsonl."""

from __future__ import annotations

from pathlib import Path

import pytest

from frostline.errors import TrainingError
from frostline.training.metrics_log import MetricsLog, read_metrics
from frostline.training.picture import draw_curves, series


@pytest.mark.parametrize("with_validation", [False, True])
def test_draws_a_png(tmp_path: Path, with_validation: bool):
    with MetricsLog(tmp_path / "metrics.jsonl") as log:
        for step in range(1, 21):
            log.write(step, {"loss": 1 / step, "lr": 0.1})
            if with_validation and step % 10 == 0:
                log.write(step, {"validation_loss": 2 / step, "validation_accuracy": step / 20})
    picture = draw_curves(tmp_path)
    assert picture == tmp_path / "curves.png"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_series_leaves_out_records_without_the_metric(tmp_path: Path):
    with MetricsLog(tmp_path / "metrics.jsonl") as log:
        log.write(1, {"loss": 0.5})
        log.write(1, {"validation_loss": 0.7})
        log.write(2, {"loss": float("nan")})
        log.write(3, {"loss": 0.4})
    records = list(read_metrics(tmp_path / "metrics.jsonl"))
    assert series(records, "loss") == ([1, 3], [0.5, 0.4])
    assert series(records, "validation_loss") == ([1], [0.7])


def test_nothing_to_draw_is_an_error(tmp_path: Path):
    with pytest.raises(TrainingError, match="nothing to draw"):
        draw_curves(tmp_path)
