"""Hub data sets without the Hub: what `datasets` returns or raises is put in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import datasets
import pytest
from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError
from huggingface_hub.errors import HTTPError

from frostline.config.origin import Origin
from frostline.data import load_source
from frostline.errors import DataError


def answers(value: Any, calls: list[tuple[Any, ...]]) -> Callable[..., Any]:
    def load(source: str, name: str | None, split: str | None) -> Any:
        calls.append((source, name, split))
        if isinstance(value, Exception):
            raise value
        return value

    return load


def test_labels_become_their_names_and_hidden_ones_none(monkeypatch: pytest.MonkeyPatch) -> None:
    features = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=["neg", "pos"]))
    table = datasets.Dataset.from_dict({"text": ["a", "b", "c"], "label": [1, 0, -1]}, features=features)
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(datasets, "load_dataset", answers(table, calls))
    rows = load_source("some-org/data", split="train", name="en")
    assert calls == [("some-org/data", "en", "train")]
    assert list(rows) == [
        {"text": "a", "label": "pos"},
        {"text": "b", "label": "neg"},
        {"text": "c", "label": None},
    ]


def test_the_only_split_needs_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    table = datasets.DatasetDict(train=datasets.Dataset.from_dict({"text": ["a"]}))
    monkeypatch.setattr(datasets, "load_dataset", answers(table, []))
    assert list(load_source("some-org/data").column("text")) == ["a"]


@pytest.mark.parametrize(
    "error",
    [
        DatasetNotFoundError("Dataset is gated"),
        DatasetGenerationError("a file is damaged"),
        ConnectionError("Couldn't reach the Hub"),
        ValueError("Unknown split 'tset'\nShould be one of ['train', 'test']."),
        HTTPError("no route to host"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_data_set_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(datasets, "load_dataset", answers(error, []))
    with pytest.raises(DataError) as raised:
        load_source("some-org/data", split="tset", name="en", origin=Origin("data.train", "c.yaml", 7))
    (problem,) = raised.value.problems
    first, *more = str(error).splitlines()
    assert problem.what == f"the data set 'some-org/data' cannot be loaded (name 'en') (split 'tset'): {first}"
    assert problem.where == "some-org/data, from c.yaml, line 7: data.train"
    assert more == [] or problem.possible == more[0]
    assert "`name` and `split`" in str(problem.fix)
