"""Formats: which columns are meant, and conversations checked."""

from __future__ import annotations

from typing import Any

import pytest

from frostline.data.formats import Columns, classification_columns, detect_format, key_columns, to_messages
from frostline.data.rows import Rows
from frostline.errors import DataError


@pytest.mark.parametrize(
    ("columns", "names", "expected"),
    [
        (["text"], None, "text"),
        (["prompt", "completion", "text"], None, "prompt_completion"),
        (["prompt", "messages"], None, "messages"),
        (["q", "a", "messages"], Columns(prompt="q", completion="a"), "prompt_completion"),
        (["body", "messages"], Columns(text="body"), "text"),
        (["turns"], Columns(messages="turns"), "messages"),
    ],
)
def test_detect_format(columns: list[str], names: Columns | None, expected: str) -> None:
    assert detect_format(columns, names) == expected


def test_no_format_lists_the_columns() -> None:
    with pytest.raises(DataError, match=r"x\.csv has no column that shows its format") as error:
        detect_format(["question", "answer"], source="x.csv")
    assert "columns: question, answer" in str(error.value)


def test_classification_columns() -> None:
    rows = Rows({"text": ["a"], "text_pair": ["b"], "label": ["c"]})
    found = classification_columns(rows)
    assert (found.text, found.text_pair, found.label) == ("text", "text_pair", "label")
    assert found.keys == ("text", "text_pair")
    rows = Rows({"body": ["a"], "class": ["c"]})
    found = classification_columns(rows, Columns(text="body", label="class"))
    assert (found.text, found.text_pair, found.label, found.keys) == ("body", None, "class", ("body",))


def test_prediction_needs_no_label() -> None:
    rows = Rows({"text": ["a"]})
    assert classification_columns(rows, need_label=False).label is None
    assert classification_columns(rows, Columns(label="topic"), need_label=False).label is None
    with pytest.raises(DataError, match="no column 'label'"):
        classification_columns(rows)


@pytest.mark.parametrize("names", [Columns(text="txt"), Columns(text_pair="second"), Columns(label="y")])
def test_a_configured_column_that_is_not_there(names: Columns) -> None:
    with pytest.raises(DataError, match=r"no column '(txt|second|y)'"):
        classification_columns(Rows({"text": ["a"], "label": ["b"]}), names)


def test_key_columns_are_checked() -> None:
    with pytest.raises(DataError, match="no column 'completion'") as error:
        key_columns(Rows({"prompt": ["a"], "answer": ["b"]}), "prompt_completion")
    assert "data.columns.completion" in str(error.value)


def test_pairs_become_messages() -> None:
    rows = Rows({"prompt": ["q", [{"role": "user", "content": "q"}]], "completion": ["a", "b"]})
    assert to_messages(rows, "prompt_completion") == [
        [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
        [{"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}],
    ]


def test_keys_that_a_table_filled_with_none_go() -> None:
    rows = Rows({"messages": [[{"role": "user", "content": "q", "name": None}]]})
    assert to_messages(rows, "messages") == [[{"role": "user", "content": "q"}]]


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (None, "c.jsonl, row 1: messages is nothing"),
        ("hi", "is a str"),
        ([], "is an empty list"),
        (["hi"], "has a str as message 0"),
        ([{"from": "human", "value": "hi"}], "has no role in message 0"),
        ([{"role": "user", "content": [1]}], "has a list as content of message 0"),
        ([{"role": "user"}], "has nothing as content of message 0"),
    ],
)
def test_what_is_no_conversation(value: Any, match: str) -> None:
    rows = Rows({"messages": [[{"role": "user", "content": "q"}], value]}, "c.jsonl")
    with pytest.raises(DataError, match=match):
        to_messages(rows, "messages")
