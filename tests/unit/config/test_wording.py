"""Plain words for values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frostline.config.wording import flow, is_number, join_or, nearest, shorten_names, show
from frostline.config.yaml_tree import parse_yaml


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "null"),
        (True, "true"),
        (3, "3"),
        (0.5, "0.5"),
        ("8", 'the text "8"'),
        ("", "empty text"),
        ([1, "a"], "the list [1, a]"),
        ((), "an empty list"),
        ({"a": None}, "the mapping {a: null}"),
        ({}, "an empty mapping"),
        ("x" * 99, f'the text "{"x" * 57}..."'),
    ],
)
def test_show(value: Any, shown: str) -> None:
    assert show(value) == shown


_PRINTABLE = st.text(st.characters(codec="ascii", min_codepoint=32, max_codepoint=126), max_size=8)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _PRINTABLE,
        lambda child: st.lists(child, max_size=3),
        max_leaves=8,
    )
)
def test_snippets_can_be_pasted(value: Any) -> None:
    assert parse_yaml(f"key: {flow(value)}", "x")[0] == {"key": value}


def test_nearest() -> None:
    assert nearest("Max-Step", ["max_steps", "epochs"]) == "max_steps"
    assert nearest("zzz", ["max_steps"]) is None


def test_numbers_and_choices() -> None:
    assert [is_number(value) for value in (1, 0.5, True, "1", float("nan"))] == [True, True, False, False, False]
    assert join_or(["a"]) == "a"
    assert join_or(["a", "b", "c"]) == "a, b or c"


def test_many_names_are_cut_and_counted() -> None:
    assert shorten_names(["a", "b"], 2) == "a, b"
    assert shorten_names(["a", "b", "c", "d"], 2) == "a, b and 2 more"
