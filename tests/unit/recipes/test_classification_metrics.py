"""The oracle is scikit-learn."""

from __future__ import annotations

import pytest
import torch
from sklearn import metrics

from frostline.recipes.classification_metrics import (
    label_set_metrics,
    regression_metrics,
    render_report,
    single_label_metrics,
)

NAMES = ("a", "b", "c", "never")


def test_single_label_equals_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(0)
    truth, predicted = (torch.randint(0, 3, (50,), generator=generator) for _ in range(2))
    ours = single_label_metrics(predicted, truth, NAMES)
    assert ours["accuracy"] == pytest.approx(metrics.accuracy_score(truth, predicted))
    expected = metrics.f1_score(truth, predicted, labels=range(4), average="macro", zero_division=0)
    assert ours["macro_f1"] == pytest.approx(expected)
    matrix = metrics.confusion_matrix(truth, predicted, labels=range(4))
    assert ours["report"]["confusion_matrix"] == matrix.tolist()
    table = metrics.precision_recall_fscore_support(truth, predicted, labels=range(4), zero_division=0)
    rows = [tuple(row.values()) for row in ours["report"]["per_class"].values()]
    assert rows == [pytest.approx(column) for column in zip(*table, strict=True)]


def test_label_sets_equal_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(0)
    truth, predicted = (torch.rand(40, 4, generator=generator) < 0.4 for _ in range(2))
    truth[:, 3] = predicted[:, 3] = False
    ours = label_set_metrics(predicted, truth, NAMES)
    for name in ("micro", "macro"):
        expected = metrics.f1_score(truth, predicted, average=name, zero_division=0)
        assert ours[f"{name}_f1"] == pytest.approx(expected)
    assert ours["exact_match"] == pytest.approx(metrics.accuracy_score(truth, predicted))


@pytest.mark.parametrize(
    ("truth", "predicted", "f1", "exact"),
    [
        ([0, 0, 0], [0, 0, 0], 0.0, 1.0),
        ([1, 1, 0], [0, 0, 0], 0.0, 1 / 3),
        ([1, 1, 0, 0], [1, 0, 1, 0], 0.5, 0.5),
        ([1, 1, 1], [1, 1, 1], 1.0, 1.0),
    ],
)
def test_a_set_of_one_label(truth: list[int], predicted: list[int], f1: float, exact: float) -> None:
    columns = [torch.tensor(values).bool()[:, None] for values in (predicted, truth)]
    ours = label_set_metrics(*columns, ("only",))
    assert (ours["micro_f1"], ours["macro_f1"]) == (f1, f1)
    assert ours["exact_match"] == pytest.approx(exact)
    assert ours["report"]["per_class"]["only"]["support"] == sum(truth)


def test_regression_equals_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(0)
    truth, predicted = (torch.rand(40, generator=generator, dtype=torch.float64) for _ in range(2))
    ours = regression_metrics(predicted, truth)
    assert ours["mse"] == pytest.approx(metrics.mean_squared_error(truth, predicted))
    assert ours["mae"] == pytest.approx(metrics.mean_absolute_error(truth, predicted))
    assert ours["pearson"] == pytest.approx(float(torch.corrcoef(torch.stack([truth, predicted]))[0, 1]))


def test_pearson_of_a_constant_is_left_out() -> None:
    assert "pearson" not in regression_metrics(torch.ones(3).double(), torch.arange(3).double())


def test_report_shows_each_label_and_the_matrix() -> None:
    ours = single_label_metrics(torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0]), ("neg", "pos"))
    lines = render_report(ours["report"]).splitlines()
    assert lines[1].split() == ["neg", "1.000", "0.500", "0.667", "2"]
    assert lines[-2].split() == ["neg", "1", "1"]
    assert lines[-1].split() == ["pos", "0", "1"]
