"""`curves.png`: training loss, validation loss and score over the steps, drawn from `metrics.jsonl` alone.

Knows nothing of a run that is going on: it can draw any run folder at any time.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from frostline.checkpoint.atomic import write_file
from frostline.errors import TrainingError
from frostline.training.metrics_log import read_metrics

#: The score drawn is the first of these that the evaluations hold.
SCORES = ("validation_accuracy", "validation_macro_f1", "validation_pearson", "validation_token_accuracy")


def draw_curves(run_dir: Path, score: str | None = None) -> Path:
    """Writes `run_dir/curves.png` and returns its path. `score` names a metric of the evaluations, without prefix.

    Raises:
        TrainingError: the folder has no metrics to draw.
    """
    source = run_dir / "metrics.jsonl"
    records = list(read_metrics(source)) if source.exists() else []
    if not records:
        raise TrainingError(
            "there is nothing to draw", where=source, possible="a run of at least one step", fix="train first"
        )
    # At the edge: matplotlib takes longer to import than everything else here. The canvas is used without pyplot,
    # whose global state would leak into a notebook.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.add_subplot()
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    train = series(records, "loss")
    window = len(train[0]) // 20  # a short run needs no mean, which would only lag behind
    axes.plot(*train, color="tab:blue", alpha=0.35 if window > 1 else 1.0, label="training loss")
    if window > 1:
        axes.plot(train[0], _smoothed(train[1], window), color="tab:blue", label=f"its mean over about {window} steps")
    validation = series(records, "validation_loss")
    if validation[0]:
        axes.plot(*validation, color="tab:orange", marker="o", label="validation loss")
    handles, labels = axes.get_legend_handles_labels()
    chosen = _score_name(records, score)
    if chosen is not None:
        other: Any = axes.twinx()
        name = chosen.removeprefix("validation_").replace("_", " ")
        other.plot(*series(records, chosen), color="tab:green", marker="s", label=name)
        other.set_ylabel(name)
        more_handles, more_labels = other.get_legend_handles_labels()
        handles, labels = handles + more_handles, labels + more_labels
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))  # never over a curve
    axes.grid(alpha=0.3)
    target = run_dir / "curves.png"
    image = io.BytesIO()
    figure.savefig(image, dpi=120, format="png")
    write_file(target, image.getvalue())
    return target


def series(records: list[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Steps and values of one metric, records without it (or with null) left out."""
    points = [(record["step"], record[name]) for record in records if record.get(name) is not None]
    return [step for step, _ in points], [value for _, value in points]


def _smoothed(values: list[float], window: int) -> list[float]:
    """Exponential mean over about `window` values, corrected for its start."""
    weight = 1 - 1 / window
    smoothed: list[float] = []
    mean = 0.0
    for number, value in enumerate(values, start=1):
        mean = weight * mean + (1 - weight) * value
        smoothed.append(mean / (1 - weight**number))
    return smoothed


def _score_name(records: list[dict[str, Any]], score: str | None) -> str | None:
    if score is not None:
        name = f"validation_{score}"
        return name if name != "validation_loss" and any(name in record for record in records) else None
    return next((name for name in SCORES if any(name in record for record in records)), None)
