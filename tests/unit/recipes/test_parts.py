"""Train, validation and test share no example, or a note says how many they share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from frostline.config import Config
from frostline.config.origin import Origins
from frostline.data.rows import Rows
from frostline.errors import DataError
from frostline.recipes.parts import Parts, read_parts


def source(path: Path, texts: Sequence[str]) -> str:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return str(path)


def parts(data: dict[str, Any]) -> Parts:
    def keys(rows: Rows, part: str) -> list[str]:
        return ["text"]

    config = Config.model_validate({"recipe": "causal_lm", "model": "m", "data": data})
    return read_parts(config, Origins(file="run.yaml"), keys)


def texts(rows: Rows | None) -> list[str]:
    assert rows is not None
    return sorted(rows.column("text"))


@pytest.fixture
def three(tmp_path: Path) -> dict[str, Any]:
    """Three sources that share examples in every pair."""
    return {
        "train": source(tmp_path / "train.jsonl", "aabcde"),
        "validation": source(tmp_path / "validation.jsonl", "bcxy"),
        "test": source(tmp_path / "test.jsonl", "cxz"),
    }


def test_what_is_shared_goes_out_of_the_part_that_is_less_held_out(three: dict[str, Any]) -> None:
    read = parts(three)
    assert (texts(read.train), texts(read.validation), texts(read.test)) == (list("ade"), list("by"), list("cxz"))
    assert read.notes == (
        "1 training example is also in the test data: out of training",
        "2 validation examples are also in the test data: out of validation",
        "1 training example is also in the validation data: out of training",
    )


def test_what_is_shared_is_counted_where_nothing_may_go_out(three: dict[str, Any]) -> None:
    read = parts({**three, "deduplicate": False})
    assert (texts(read.train), texts(read.validation), texts(read.test)) == (list("aabcde"), list("bcxy"), list("cxz"))
    assert read.notes == (
        "1 training example is also in the test data: kept (data.deduplicate: false)",
        "2 validation examples are also in the test data: kept (data.deduplicate: false)",
        "2 training examples are also in the validation data: kept (data.deduplicate: false)",
    )


def test_duplicates_on_both_sides_of_a_split_are_counted(tmp_path: Path) -> None:
    train = source(tmp_path / "train.jsonl", "a" * 10)
    read = parts({"train": train, "validation": 4, "deduplicate": False})
    assert (len(read.train), len(read.validation or ())) == (6, 4)
    assert read.notes == ("6 training examples are also in the validation data: kept (data.deduplicate: false)",)


def test_no_note_where_nothing_is_shared(tmp_path: Path) -> None:
    train = source(tmp_path / "train.jsonl", "abcdefghij")
    for deduplicate in (True, False):
        assert parts({"train": train, "validation": 0.2, "deduplicate": deduplicate}).notes == ()


def test_validation_data_that_are_the_test_data(tmp_path: Path, three: dict[str, Any]) -> None:
    same = {**three, "validation": three["test"]}
    with pytest.raises(DataError, match=r"is also in .*test\.jsonl, so nothing is left to validate on\n +where: +run"):
        parts(same)
    assert texts(parts({**same, "deduplicate": False}).validation) == list("cxz")
