"""Split: no example on both sides, the same parts for the same seed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frostline.data.rows import Rows
from frostline.data.split import count_conflicts, deduplicate, remove_overlap, split, take
from frostline.errors import DataError


def texts(rows: Rows) -> list[str]:
    return list(rows.column("text"))


def test_deduplicate_keeps_the_first() -> None:
    rows = Rows({"text": ["a", "b", "a", "a "], "label": [1, 2, 3, 4]})
    unique, removed = deduplicate(rows, ["text"])
    assert (texts(unique), list(unique.column("label")), removed) == (["a", "b", "a "], [1, 2, 4], 1)
    assert deduplicate(rows, ["text", "label"])[1] == 0
    assert count_conflicts(rows, ["text"], "label") == 1


def test_deduplicate_conversations_and_values_of_other_types() -> None:
    one = [{"role": "user", "content": "x"}]
    same = [{"content": "x", "role": "user"}]
    rows = Rows({"messages": [one, same, "x", None, "null", None]})
    unique, removed = deduplicate(rows, ["messages"])
    assert removed == 2
    assert list(unique.column("messages")) == [one, "x", None, "null"]


def test_deduplicate_checks_the_column() -> None:
    with pytest.raises(DataError, match="no column 'body'"):
        deduplicate(Rows({"text": ["a"]}), ["body"])


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1), st.integers(), st.floats(0.01, 0.99))
def test_split_parts_share_nothing_and_lose_nothing(values: list[str], seed: int, fraction: float) -> None:
    unique, _ = deduplicate(Rows({"text": values}), ["text"])
    if len(unique) < 2 or not 0 < max(1, round(len(unique) * fraction)) < len(unique):
        return
    train, validation = split(unique, fraction, seed)
    assert not set(texts(train)) & set(texts(validation))
    assert sorted(texts(train) + texts(validation)) == sorted(set(values))
    again = split(unique, fraction, seed)
    assert [texts(part) for part in again] == [texts(train), texts(validation)]


def test_split_by_count_depends_on_the_seed_and_mixes_sorted_data() -> None:
    rows = Rows({"text": [str(i) for i in range(100)], "label": [i // 50 for i in range(100)]})
    train, validation = split(rows, 40, seed=0)
    assert (len(train), len(validation)) == (60, 40)
    assert 0 < sum(validation.column("label")) < 40
    assert texts(split(rows, 40, seed=1)[1]) != texts(validation)
    # pinned: a run of today must be resumable after an upgrade
    assert texts(validation)[:5] == ["59", "11", "70", "40", "12"]


@pytest.mark.parametrize("validation", [0, 10, 11, -1, 0.0, 1.0, 1.5, 0.99])
def test_a_split_that_leaves_one_side_empty(validation: float) -> None:
    rows = Rows({"text": [str(i) for i in range(10)]})
    with pytest.raises(DataError, match=f"validation: {validation} of 10 examples leaves no example"):
        split(rows, validation, 0)


def test_overlap_is_removed_from_train() -> None:
    train, other = Rows({"text": ["a", "b", "c"]}), Rows({"text": ["b", "x"]})
    left, removed = remove_overlap(train, other, ["text"])
    assert (texts(left), removed) == (["a", "c"], 1)
    with pytest.raises(DataError, match="nothing is left to train on"):
        remove_overlap(train, train, ["text"])


def test_take_is_a_random_sample_and_nested() -> None:
    rows = Rows({"text": [str(i) for i in range(50)]})
    ten, twenty = texts(take(rows, 10, 3)), texts(take(rows, 20, 3))
    assert ten == twenty[:10]
    assert len(set(twenty)) == 20
    assert ten != texts(rows)[:10]
    assert take(rows, None, 3) is rows
    assert take(rows, 50, 3) is rows
