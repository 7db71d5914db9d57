"""Trained rows of an input embedding are looked for in the training data before a run starts."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

import frostline as fl
from frostline.recipes.row_use import check_rows

EXAMPLES = [{"input_ids": [1, 2, 3]}, {"input_ids": [3, 4]}]


class Model(nn.Module):
    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def get_input_embeddings(self) -> nn.Module:
        return self.embed


def checked(rows: Any, *, names: tuple[str, ...] = ("embed.weight",), tied: bool = False) -> list[str]:
    thaw = [{"param": name, "rows": rows} for name in names]
    model, plan = fl.prepare(Model(tied=tied), freeze_config={"freeze_modules": ["*"], "unfreeze_modules": thaw})
    return check_rows(model, plan, EXAMPLES)


def test_rows_that_no_example_holds_are_refused_with_the_entry() -> None:
    with pytest.raises(
        fl.ConfigError, match=r"rows 7:10 of embed\.trained_rows occur in no training example"
    ) as caught:
        checked("7:")
    assert "unfreeze_modules" in caught.value.problems[0].where
    assert "name rows of such tokens" in caught.value.problems[0].fix


def test_of_rows_that_some_examples_hold_the_others_are_told() -> None:
    assert checked([3, 4]) == []
    (line,) = checked([3, 8, 9])
    assert line.startswith("2 of 3 trained rows of embed.trained_rows occur in no training example")
    assert line.endswith("8:10")


def test_each_batch_reaches_the_rows_of_a_head() -> None:
    assert checked("7:", names=("head.weight",)) == []
    assert checked("7:", names=("embed.weight", "head.weight"), tied=True) == []


def test_a_model_without_input_embeddings_is_left_alone() -> None:
    model, plan = fl.prepare(
        nn.ModuleDict({"embed": nn.Embedding(10, 4)}),
        freeze_config={"freeze_modules": ["*"], "unfreeze_modules": [{"param": "embed.weight", "rows": "7:"}]},
    )
    assert check_rows(model, plan, EXAMPLES) == []
