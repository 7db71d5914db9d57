"""Labels: kinds, order, unseen labels, weights."""

from __future__ import annotations

from typing import Any

import pytest

from frostline.data.labels import LabelMap
from frostline.errors import DataError


@pytest.mark.parametrize(
    ("values", "problem", "names"),
    [
        (["spam", "ham", "spam"], "single_label", ("ham", "spam")),
        ([10, 9, 2], "single_label", ("2", "9", "10")),
        (["10", "9"], "single_label", ("9", "10")),
        ([True, False], "single_label", ("False", "True")),
        ([["b"], [], ["a", "b"]], "multi_label", ("a", "b")),
        ([0.5, 1.0], "regression", ("value",)),
        ([1, 1.5], "regression", ("value",)),
    ],
)
def test_kind_and_names_come_from_the_values(values: list[Any], problem: str, names: tuple[str, ...]) -> None:
    labels = LabelMap.from_values(values)
    assert (labels.problem, labels.names) == (problem, names)
    assert labels.id2label == dict(enumerate(names))
    assert labels.num_labels == len(names)


def test_encode_each_kind() -> None:
    assert LabelMap.from_values(["b", "a"]).encode(["a", "b", "b"]) == [0, 1, 1]
    assert LabelMap.from_values([["a"], ["b"]]).encode([["b"], [], ["b", "a"]]) == [[0.0, 1.0], [0.0, 0.0], [1.0, 1.0]]
    assert LabelMap.from_values(["1", "2.5"], problem="regression").encode(["3", 4]) == [3.0, 4.0]


def test_a_label_that_training_never_saw_is_listed_with_its_count() -> None:
    labels = LabelMap.from_values(["a", "b"])
    with pytest.raises(DataError, match=r"validation has labels that the training data never had: 'c' \(2 x\), 'd'"):
        labels.encode(["a", "c", "d", "c"], "validation")
    with pytest.raises(DataError, match="'z'"):
        LabelMap.from_values([["a"], ["b"]]).encode([["a", "z"]])


def test_num_labels() -> None:
    assert LabelMap.from_values([0, 2], num_labels=4).names == ("0", "1", "2", "3")
    assert LabelMap.from_values(["x", "y"], num_labels=2).names == ("x", "y")
    with pytest.raises(DataError, match="num_labels is 3, the training data has 2 labels"):
        LabelMap.from_values(["x", "y"], num_labels=3)
    with pytest.raises(DataError, match="num_labels is 2, the training data has 3 labels"):
        LabelMap.from_values([0, 1, 2], num_labels=2)
    with pytest.raises(DataError, match="regression has one output"):
        LabelMap.from_values([0.5], num_labels=2)


@pytest.mark.parametrize(
    ("values", "problem", "match"),
    [
        (["a", None], None, "row 1 has no label"),
        (["a", ""], None, "row 1 has no label"),
        (["a", ["b"]], None, "different kinds"),
        (["a", 1.5], None, "different kinds"),
        (["a", "a"], None, "has one label: a(.|\n)*do: +correct the data$"),
        ([], None, "there are none"),
        (["a", "b"], "regression", r"label 'a' \(str\), which does not fit regression"),
        ([1.0, float("nan")], None, "label nan"),
        (["a", "b"], "multi_label", "does not fit multi_label"),
        ([1.5, 2.5], "single_label", "does not fit single_label"),
        ([[["a"]]], None, "does not fit multi_label"),
    ],
)
def test_labels_that_cannot_be_used(values: list[Any], problem: Any, match: str) -> None:
    with pytest.raises(DataError, match=match):
        LabelMap.from_values(values, problem)


def test_balanced_weights_equal_scikit_learn() -> None:
    weights = pytest.importorskip("sklearn.utils.class_weight")
    import numpy

    values = ["a"] * 6 + ["b"] * 3 + ["c"]
    labels = LabelMap.from_values(values)
    expected = weights.compute_class_weight("balanced", classes=numpy.array(["a", "b", "c"]), y=values)
    assert labels.balanced_weights(values) == pytest.approx(list(expected))
    assert labels.counts(values) == {"a": 6, "b": 3, "c": 1}


def test_balanced_weights_need_every_label_and_one_label_each() -> None:
    with pytest.raises(DataError, match="none of: 2"):
        LabelMap.from_values([0, 1], num_labels=3).balanced_weights([0, 1])
    with pytest.raises(DataError, match="multi_label"):
        LabelMap.from_values([["a"]]).balanced_weights([["a"]])


def test_equal_integers_have_one_order() -> None:
    names = LabelMap.from_values(["2", "001", "1", "01"], "single_label", None, None).names
    assert names == ("001", "01", "1", "2")
    assert LabelMap.from_values(["--1", "2"], "single_label", None, None).names == ("--1", "2")


def test_numbers_beyond_what_can_be_read() -> None:
    with pytest.raises(DataError, match=r"row 1 has the label 1000.*\(401 characters\) \(int\).*fit regression"):
        LabelMap.from_values([1.5, 10**400])
    assert LabelMap.from_values(["9" * 5_000, "1"]).num_labels == 2


def test_one_label_names_num_labels_only_where_it_was_set() -> None:
    with pytest.raises(DataError, match="has one label: a") as error:
        LabelMap.from_values(["a", "a"])
    assert "num_labels" not in str(error.value)
    with pytest.raises(DataError, match="num_labels"):
        LabelMap.from_values(["a", "a"], num_labels=1)
