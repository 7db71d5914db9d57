"""Where backward stops, computed from the plan."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from frostline import LoRA, prepare, resolve
from frostline.trainability.screen.backward import backward_reaches

from ..conftest import encoder

HEAD = ["head.weight", "head.bias"]


@pytest.mark.parametrize(
    ("config", "peft", "reached"),
    [
        ({}, None, "embed"),
        ({"freeze_modules": ["embed"]}, None, "layers.0"),
        ({"freeze_modules": ["embed", {"layers": ":2"}]}, None, "layers.2"),
        ({"freeze_modules": ["embed", "layers"]}, None, "head"),
        ({}, LoRA(rank=2, target_modules=[{"layers": "1:"}]), "layers.1"),
        ({}, LoRA(rank=2, target_modules=["head"]), "head"),
    ],
)
def test_the_first_block_or_module_that_holds_anything_trained(config: Any, peft: Any, reached: str) -> None:
    assert backward_reaches(resolve(encoder(), freeze_config=config, peft=peft)) == reached
    _, plan = prepare(encoder(), freeze_config=config, peft=peft)
    assert backward_reaches(plan) == reached


def test_a_head_that_is_defined_in_front_of_the_body_does_not_count_before_it() -> None:
    model = nn.ModuleDict({"head": nn.Linear(4, 3), "body": nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))})
    last = {"freeze_modules": ["body.0"]}
    assert backward_reaches(resolve(model, freeze_config=last, new=HEAD)) == "body.1"
    assert backward_reaches(resolve(model, freeze_config={"freeze_modules": ["body"]}, new=HEAD)) == "head"


def test_a_new_table_is_reached_and_a_root_has_a_name() -> None:
    model = nn.ModuleDict({"table": nn.Embedding(5, 4), "layers": nn.ModuleList([nn.Linear(4, 4)])})
    assert backward_reaches(resolve(model, new=["table.weight"])) == "table"
    assert backward_reaches(resolve(nn.Linear(2, 2))) == "the root"
