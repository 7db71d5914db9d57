"""Scores of a classification or regression from predictions and truth; and how their tables look in a terminal.

Pure functions of tensors. They agree with scikit-learn (`zero_division=0`, all labels counted), whose import would cost
a second at every start; the tests hold the two against each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def single_label_metrics(predicted: Tensor, truth: Tensor, names: Sequence[str]) -> dict[str, Any]:
    """`accuracy`, `macro_f1`; under `report`: `per_class`, `confusion_matrix` (rows: truth), `labels`.

    Args:
        predicted, truth: [examples] int64, label numbers.
        names: of all labels; macro-F1 is the mean over all of them, also those without examples.
    """
    num = len(names)
    matrix = torch.bincount(truth * num + predicted, minlength=num * num).view(num, num).double()
    hits = matrix.diagonal()
    per_class = _per_class(hits, matrix.sum(0), matrix.sum(1), names)
    return {
        "accuracy": float(hits.sum() / max(len(truth), 1)),
        "macro_f1": sum(row["f1"] for row in per_class.values()) / num,
        "report": {
            "labels": list(names),
            "per_class": per_class,
            "confusion_matrix": matrix.long().tolist(),
        },
    }


def label_set_metrics(predicted: Tensor, truth: Tensor, names: Sequence[str]) -> dict[str, Any]:
    """`exact_match` (all labels of an example right), `micro_f1`, `macro_f1`; `report` with `per_class`.

    Args:
        predicted, truth: [examples, num_labels] bool.
    """
    hits = (predicted & truth).sum(0).double()
    per_class = _per_class(hits, predicted.sum(0).double(), truth.sum(0).double(), names)
    total = predicted.sum() + truth.sum()
    return {
        "exact_match": float((predicted == truth).all(-1).double().mean()),
        "micro_f1": float(2 * hits.sum() / total) if total else 0.0,
        "macro_f1": sum(row["f1"] for row in per_class.values()) / len(names),
        "report": {"labels": list(names), "per_class": per_class},
    }


def regression_metrics(predicted: Tensor, truth: Tensor) -> dict[str, Any]:
    """`mse`, `mae`, and `pearson` where it is defined (neither side constant).

    Args:
        predicted, truth: [examples] float64.
    """
    difference = predicted - truth
    metrics = {"mse": float(difference.square().mean()), "mae": float(difference.abs().mean())}
    x, y = predicted - predicted.mean(), truth - truth.mean()
    spread = float(x.norm() * y.norm())
    if spread > 0:
        metrics["pearson"] = float(x @ y) / spread
    return metrics


def _per_class(hits: Tensor, predicted: Tensor, support: Tensor, names: Sequence[str]) -> dict[str, dict[str, float]]:
    table: dict[str, dict[str, float]] = {}
    columns = zip(names, hits.tolist(), predicted.tolist(), support.tolist(), strict=True)
    for name, hit, num_predicted, num_true in columns:
        table[name] = {
            "precision": hit / num_predicted if num_predicted else 0.0,
            "recall": hit / num_true if num_true else 0.0,
            "f1": 2 * hit / (num_predicted + num_true) if num_predicted + num_true else 0.0,
            "support": int(num_true),
        }
    return table


def render_report(report: Mapping[str, Any]) -> str:
    """The per-class table, and the confusion matrix where there is one with at most 20 labels."""
    per_class: Mapping[str, Mapping[str, float]] = report.get("per_class", {})
    if not per_class:
        return ""
    width = max(len("label"), *(len(name) for name in per_class))
    lines = [f"{'label':<{width}}  precision  recall      f1  support"]
    lines += [
        f"{name:<{width}}  {row['precision']:>9.3f}  {row['recall']:>6.3f}  {row['f1']:>6.3f}  {row['support']:>7,}"
        for name, row in per_class.items()
    ]
    matrix: Sequence[Sequence[int]] | None = report.get("confusion_matrix")
    names: Sequence[str] = report["labels"]
    if matrix is not None and len(names) <= 20:
        cell = max(5, *(len(f"{count:,}") for row in matrix for count in row), *(min(len(name), 12) for name in names))
        lines += ["", f"{'true, predicted':<{max(width, 15)}}  " + "  ".join(f"{name[:12]:>{cell}}" for name in names)]
        lines += [
            f"{name:<{max(width, 15)}}  " + "  ".join(f"{count:>{cell},}" for count in row)
            for name, row in zip(names, matrix, strict=True)
        ]
    return "\n".join(lines)
