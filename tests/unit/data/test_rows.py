"""Rows: columns, missing values, missing columns."""

from __future__ import annotations

import pytest

from frostline.config.origin import Origin
from frostline.data.rows import Rows
from frostline.errors import DataError


def test_rows_from_dicts_fill_what_a_row_lacks() -> None:
    rows = Rows.from_dicts([{"a": 1}, {"a": 2, "b": 3}, {"b": 4}])
    assert dict(rows.columns) == {"a": [1, 2, None], "b": [None, 3, 4]}
    assert len(rows) == 3
    assert rows[1] == {"a": 2, "b": 3}
    assert list(rows) == [{"a": 1, "b": None}, {"a": 2, "b": 3}, {"a": None, "b": 4}]


def test_select_keeps_order_source_and_notes() -> None:
    rows = Rows({"a": [10, 11, 12]}, "here", ("note",)).select([2, 0])
    assert (list(rows.column("a")), rows.source, rows.notes) == ([12, 10], "here", ("note",))


def test_a_column_that_is_not_there_lists_the_columns() -> None:
    rows = Rows({"texts": ["x"], "label": ["y"]}, "mail.csv")
    with pytest.raises(DataError, match=r"no column 'text' in mail\.csv") as error:
        rows.column("text", Origin("data.train", "c.yaml", 4))
    message = str(error.value)
    assert "c.yaml, line 4: data.train" in message
    assert "columns: texts, label (nearest: texts)" in message
    assert "data.columns.text: texts" in message


def test_a_header_with_semicolons_is_explained() -> None:
    with pytest.raises(DataError, match="not separated by commas"):
        Rows({"text;label": ["x;y"]}).column("text")


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(DataError, match="different length"):
        Rows({"a": [1], "b": []})


def test_datasets_round_trip_and_class_labels_become_names() -> None:
    datasets = pytest.importorskip("datasets")
    rows = Rows({"text": ["x", "y"], "n": [1, 2]})
    assert dict(Rows.from_dataset(rows.to_dataset(), "s").columns) == dict(rows.columns)
    features = datasets.Features({"label": datasets.ClassLabel(names=["ham", "spam"])})
    labelled = datasets.Dataset.from_dict({"label": [1, 0, -1]}, features=features)
    assert list(Rows.from_dataset(labelled, "s").column("label")) == ["spam", "ham", None]
