"""Folding: equal subtrees are one object, the sums are those of the plan, and a large model stays a small tree."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn

from frostline import LoRA, TrainabilityPlan, resolve
from frostline.trainability.screen.folding import Part, fold, span
from frostline.trainability.screen.table import table_rows

from ..conftest import encoder


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(8, 4, bias=False), nn.Linear(8, 4, bias=False)
        self.down_proj = nn.Linear(4, 8, bias=False)


class Layer(nn.Module):
    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self.q_proj, self.o_proj = nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.router = nn.Linear(8, num_experts, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(num_experts))


def mixture(num_layers: int, num_experts: int) -> nn.Module:
    with torch.device("meta"):
        layers = nn.ModuleList(Layer(num_experts) for _ in range(num_layers))
        return nn.ModuleDict({"embed": nn.Embedding(32, 8), "layers": layers, "head": nn.Linear(8, 32, bias=False)})


def num_parts(part: Part) -> int:
    seen: set[int] = set()
    waiting = [part]
    while waiting:
        at = waiting.pop()
        if id(at) not in seen:
            seen.add(id(at))
            waiting.extend(group.part for group in at.groups)
    return len(seen)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["3"], "3"),
        (["0", "1", "2"], "0-2"),
        (["0", "2", "4"], "0-4 step 2"),
        (["0", "2"], "0,2"),
        (["0", "3", "4", "7"], "0,3-4,7"),
        ([str(number) for number in (0, 2, 3, 6, 8, 11, 13, 20)], "0,2-3,6,8,11,...,20"),
    ],
)
def test_spans(names: list[str], text: str) -> None:
    assert span(names) == text


@pytest.mark.parametrize(
    ("config", "peft"),
    [
        ({}, None),
        ({"freeze_modules": [{"layers": 1}]}, None),
        ({"freeze_modules": [{"type": "Linear"}]}, None),
        ({"unfreeze_modules": [{"param": "*.bias"}]}, LoRA(rank=2, target_modules=["linear"])),
    ],
)
def test_sums_are_those_of_the_plan(config: Any, peft: Any) -> None:
    plan = resolve(encoder(), freeze_config=config, peft=peft)
    sums = fold(plan).sums
    adapters = [total for total, _ in sums.adapters.values()]
    trained = [trained for _, trained in sums.adapters.values()]
    assert sums.base + sum(adapters) == plan.num_total
    assert sums.base_trained + sum(trained) == plan.num_trainable


def test_equal_blocks_that_do_not_follow_one_another_are_one_row() -> None:
    plan = resolve(encoder(), freeze_config={"freeze_modules": [{"layers": 1}]})
    assert [(row.module, row.trains) for row in table_rows(plan)][1:3] == [
        ("layers.0,2 (2 equal)", 56),
        ("layers.1", 0),
    ]


def test_a_note_or_a_dtype_of_its_own_keeps_a_block_apart() -> None:
    model = encoder()
    model.layers[1].to(torch.bfloat16)
    assert [group.label for group in fold(resolve(model)).groups[1].part.groups] == ["0,2", "1"]


def test_blocks_that_share_a_tensor_each_with_itself_are_equal() -> None:
    model = encoder()
    for layer in model.layers:
        layer.second = nn.Linear(4, 4)
        layer.second.weight = layer.linear.weight
    plan = resolve(model)
    assert [group.label for group in fold(plan).groups[1].part.groups] == ["0-2"]
    part = fold(plan).groups[1].part.groups[0].part
    second = next(group.part for group in part.groups if group.names == ("second",))
    assert second.entries[-1].ties == ((2, "linear.weight"),) or second.entries[0].ties == ((2, "linear.weight"),)
    assert fold(plan).sums.base == plan.num_total  # each tensor once


def few_rows(plan: TrainabilityPlan) -> list[str]:
    return [row.module for row in table_rows(plan)]


def test_layers_of_experts_fold_into_a_few_lines() -> None:
    model = mixture(num_layers=12, num_experts=64)
    started = time.perf_counter()
    adapted = resolve(model, peft=LoRA(rank=2, target_modules=["*_proj"]))
    resolved = time.perf_counter()
    assert few_rows(adapted) == [
        "embed",
        "layers.0-11 (12 equal)",
        "q_proj  +LoRA r2",
        "o_proj  +LoRA r2",
        "experts.*.gate_proj  +LoRA r2",
        "experts.*.up_proj  +LoRA r2",
        "experts.*.down_proj  +LoRA r2",
        "head",
    ]
    assert time.perf_counter() - resolved < max(2.0, 2 * (resolved - started))
    assert num_parts(fold(adapted)) < 20
    mixed = resolve(model, freeze_config={"freeze_modules": [{"glob": "*.experts.*.up_proj"}]})
    assert few_rows(mixed) == [
        "embed",
        "layers.0-11 (12 equal)",
        "q_proj",
        "o_proj",
        "norm",
        "router",
        "experts.0-63 (64 equal)",
        "gate_proj",
        "up_proj",
        "down_proj",
        "head",
    ]
    assert sum(row.params or 0 for row in table_rows(mixed) if row.indent == 0) == mixed.num_total


def test_children_that_differ_in_one_block_keep_only_that_block_apart() -> None:
    plan = resolve(mixture(4, 8), freeze_config={"freeze_modules": [{"path": "layers.2.experts.5"}]})
    rows = [(row.module, row.indent) for row in table_rows(plan)]
    assert ("layers.0-1,3 (3 equal)", 0) in rows
    assert ("layers.2.experts.0-4,6-7 (7 equal)", 0) in rows
    assert ("layers.2.experts.5", 0) in rows
