"""Scores of a classification or regression from predictions and truth; and how their tables look in a terminal.

The numbers are scikit-learn's, with all labels counted and `zero_division=0`. It is imported on the first call, because
it takes a second that planning need not wait for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

#: Names of the numbers that the functions below return, by problem.
METRIC_NAMES: Mapping[str, tuple[str, ...]] = {
    "single_label": ("accuracy", "macro_f1"),
    "multi_label": ("exact_match", "micro_f1", "macro_f1"),
    "regression": ("mse", "mae", "pearson"),
}

_NAME_WIDTH = 20  # in the head of a confusion matrix
_ZERO: Any = 0  # scikit-learn takes numbers too, and its annotation says text only


def single_label_metrics(predicted: Tensor, truth: Tensor, names: Sequence[str]) -> dict[str, Any]:
    """`accuracy`, `macro_f1`; under `report`: `per_class`, `confusion_matrix` (rows: truth), `labels`.

    Args:
        predicted, truth: [examples] int64, label numbers.
        names: of all labels; macro-F1 is the mean over all of them, also those without examples.
    """
    from sklearn.metrics import accuracy_score, confusion_matrix

    numbers = list(range(len(names)))
    per_class = _per_class(predicted, truth, names, labels=numbers)
    return {
        "accuracy": float(accuracy_score(truth.numpy(), predicted.numpy())),
        "macro_f1": _macro_f1(per_class),
        "report": {
            "labels": list(names),
            "per_class": per_class,
            "confusion_matrix": confusion_matrix(truth.numpy(), predicted.numpy(), labels=numbers).tolist(),
        },
    }


def label_set_metrics(predicted: Tensor, truth: Tensor, names: Sequence[str]) -> dict[str, Any]:
    """`exact_match` (all labels of an example right), `micro_f1`, `macro_f1`; `report` with `per_class`.

    Args:
        predicted, truth: [examples, num_labels] bool.
    """
    from sklearn.metrics import accuracy_score, f1_score

    # scikit-learn takes one column for two classes, "no" and "yes"; the label is the second.
    labels = [1] if len(names) == 1 else list(range(len(names)))
    per_class = _per_class(predicted, truth, names, labels=labels)
    micro = f1_score(truth.numpy(), predicted.numpy(), labels=labels, average="micro", zero_division=_ZERO)
    return {
        "exact_match": float(accuracy_score(truth.numpy(), predicted.numpy())),
        "micro_f1": float(micro),
        "macro_f1": _macro_f1(per_class),
        "report": {"labels": list(names), "per_class": per_class},
    }


def regression_metrics(predicted: Tensor, truth: Tensor) -> dict[str, Any]:
    """`mse`, `mae`, and `pearson` where it is defined (neither side constant).

    Args:
        predicted, truth: [examples] float64.
    """
    from sklearn.metrics import mean_absolute_error, mean_squared_error

    ours, theirs = predicted.numpy(), truth.numpy()
    metrics = {"mse": float(mean_squared_error(theirs, ours)), "mae": float(mean_absolute_error(theirs, ours))}
    if ours.std() > 0 and theirs.std() > 0:
        metrics["pearson"] = float(np.corrcoef(ours, theirs)[0, 1])
    return metrics


def _per_class(
    predicted: Tensor, truth: Tensor, names: Sequence[str], *, labels: Sequence[int]
) -> dict[str, dict[str, float]]:
    from sklearn.metrics import precision_recall_fscore_support

    columns: Any = precision_recall_fscore_support(truth.numpy(), predicted.numpy(), labels=labels, zero_division=_ZERO)
    return {
        name: {"precision": float(precision), "recall": float(recall), "f1": float(f1), "support": int(support)}
        for name, precision, recall, f1, support in zip(names, *columns, strict=True)
    }


def _macro_f1(per_class: Mapping[str, Mapping[str, float]]) -> float:
    return sum(row["f1"] for row in per_class.values()) / len(per_class)


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
        cell = max(
            5, *(len(f"{count:,}") for row in matrix for count in row), *(min(len(name), _NAME_WIDTH) for name in names)
        )
        lines += [
            "",
            f"{'true, predicted':<{max(width, 15)}}  " + "  ".join(f"{name[:_NAME_WIDTH]:>{cell}}" for name in names),
        ]
        lines += [
            f"{name:<{max(width, 15)}}  " + "  ".join(f"{count:>{cell},}" for count in row)
            for name, row in zip(names, matrix, strict=True)
        ]
    return "\n".join(lines)
