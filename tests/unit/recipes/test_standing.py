"""Rows are found again by their values, in whatever process they were read."""

from __future__ import annotations

import datetime

from frostline.data.rows import Rows
from frostline.recipes.standing import describe_held_out


def digest_of(*values: object) -> str:
    return describe_held_out({"test": Rows({"text": values})})["test"]["digest"]


def test_equal_rows_have_one_digest_and_others_another() -> None:
    assert digest_of("a", None, float("nan"), "\ud800") == digest_of("a", None, float("nan"), "\ud800")
    assert digest_of(datetime.date(2024, 2, 29)) != digest_of(datetime.date(2024, 3, 1))
    assert digest_of(object()) == digest_of(object()), "no address of a value is in it"
    assert digest_of("a", "b") != digest_of("b", "a")
