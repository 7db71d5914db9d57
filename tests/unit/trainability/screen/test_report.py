"""The table: folded blocks, rules beside the rows, counts that add up."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from frostline import LoRA, TrainabilityPlan, resolve
from frostline.trainability.screen.table import table_rows

from ..conftest import encoder


def rows(plan: TrainabilityPlan) -> list[tuple[str, int | None, int]]:
    return [(row.module, row.params, row.trains) for row in table_rows(plan)]


def test_equal_blocks_fold_into_one_row_and_the_rest_keeps_its_own() -> None:
    plan = resolve(
        encoder(), freeze_config={"freeze_modules": ["embed", {"layers": ":2"}]}, new=["head.weight", "head.bias"]
    )
    assert rows(plan) == [
        ("embed", 20, 0),
        ("layers.0-1 (2 equal)", 56, 0),
        ("layers.2", 28, 28),
        ("head", 15, 15),
    ]
    assert [row.decided_by for row in table_rows(plan)] == [
        'freeze_modules "embed"',
        'freeze_modules layers ":2"',
        "baseline: trains as built",
        "new parameters train",
    ]
    text = plan.render()
    assert "head  NEW" in text
    assert "trains   43 of 119 (36.13 %)" in text
    assert text.splitlines()[-1] == f"plan     {plan.digest[:8]}"


def test_single_parameters_are_counted_beside_the_rule_of_the_rest() -> None:
    plan = resolve(encoder(), freeze_config={"freeze_modules": ["*"], "unfreeze_modules": [{"param": "*.bias"}]})
    assert rows(plan) == [("embed", 20, 4), ("layers", 84, 24), ("head", 15, 3)]
    assert table_rows(plan)[1].decided_by == 'unfreeze_modules param "*.bias" (6); freeze_modules "*"'


def test_blocks_under_several_rules_are_shown_once_with_the_counts_of_all() -> None:
    plan = resolve(encoder(), freeze_config={"freeze_modules": [{"type": "BatchNorm1d"}]})
    assert rows(plan)[1:4] == [
        ("layers.0-2 (3 equal)", 84, 60),
        ("linear", 60, 60),
        ("norm", 24, 0),
    ]
    assert [row.indent for row in table_rows(plan)] == [0, 0, 1, 1, 0]


def test_adapters_stand_below_the_row_of_their_block() -> None:
    plan = resolve(encoder(), peft=LoRA(rank=2, target_modules=["linear", "head"]))
    assert rows(plan) == [
        ("embed", 20, 0),
        ("layers.0-2 (3 equal)", 84, 0),
        ("linear  +LoRA r2", None, 48),
        ("head", 15, 0),
        ("head  +LoRA r2", None, 14),
    ]
    frozen = resolve(
        encoder(),
        freeze_config={"freeze_modules": [{"param": "*.lora_A.*"}]},
        peft=LoRA(rank=2, target_modules=["head"]),
    )
    assert ("head  +LoRA r2", 8, 0) in rows(frozen)
    assert ("head  +LoRA r2", None, 6) in rows(frozen)


def test_own_parameters_of_a_block_keep_a_short_name_when_folded() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))
            self.linear = nn.Linear(2, 2)

    model = nn.ModuleDict({"layers": nn.ModuleList(Scaled() for _ in range(2)), "head": nn.Linear(2, 2)})
    plan = resolve(model, freeze_config={"freeze_modules": ["linear"]})
    assert rows(plan) == [
        ("layers.0-1 (2 equal)", 16, 4),
        ("(own parameters)", 4, 4),
        ("linear", 12, 0),
        ("head", 6, 6),
    ]


def test_a_model_that_is_one_module() -> None:
    assert rows(resolve(nn.Linear(2, 2))) == [("(root)", 6, 6)]
    mixed = resolve(nn.Linear(2, 2), freeze_config={"freeze_modules": [{"param": "bias"}]})
    assert rows(mixed) == [("(root)", 6, 4)]


@pytest.mark.parametrize(
    ("config", "peft"),
    [
        ({}, None),
        ({"freeze_modules": ["layers"]}, None),
        ({"freeze_modules": [{"type": "Linear"}]}, None),
        ({"freeze_modules": [{"layers": 1}], "unfreeze_modules": [{"param": "*.bias"}]}, None),
        ({}, LoRA(rank=3, target_modules=["linear"])),
        ({"unfreeze_modules": [{"type": "BatchNorm1d"}]}, LoRA(rank=3, target_modules=["linear"])),
        ({"freeze_modules": [{"layers": 0}]}, LoRA(rank=3)),
    ],
)
def test_the_top_rows_add_up_to_the_plan(config: Any, peft: Any) -> None:
    plan = resolve(encoder(), freeze_config=config, peft=peft)
    table = table_rows(plan)
    folded = [row for row in table if row.indent == 0]
    base = sum(entry.num_elements for entry in plan.decisions.values() if entry.kind != "adapter")
    assert sum(row.params or 0 for row in folded) == base
    adapters = sum(row.trains for row in table if "+LoRA" in row.module)
    assert sum(row.trains for row in folded) + adapters == plan.num_trainable


def test_facts_notes_memory_and_width() -> None:
    model = encoder().to(torch.bfloat16)
    model.embed.weight.requires_grad_(False)
    plan = resolve(model, freeze_config={"unfreeze_modules": ["embed"]})
    text = plan.render({"data": "10 examples", "truncated_texts": "3", "optimizer": "SGD"}, width=60)
    assert "data     10 examples" in text
    assert "truncated_texts 3" in text
    assert "note     thawed although the model built it frozen: embed.weight" in text
    assert "memory   weights 0.0 MB, gradients 0.0 MB, SGD 0.0 MB" in text
    table = text.split("\n\n")[0].splitlines()
    assert max(map(len, table)) <= 60
    with torch.device("meta"):
        large = nn.Linear(1000, 1000, bias=False, dtype=torch.bfloat16)
    assert "weights 2.0 MB, gradients 2.0 MB, AdamW 4.0 MB" in resolve(large).render()


@pytest.mark.parametrize("width", [30, 50, 60, 80, 200])
def test_a_narrow_terminal_cuts_no_rule(width: int) -> None:
    rule = {"type": "Linear", "within": {"glob": "layers.1*"}}
    text = resolve(encoder(), freeze_config={"unfreeze_modules": [rule]}).render(width=width)
    table = text.split("\n\n")[0]
    assert 'unfreeze_modules type Linear within glob "layers.1*"' in " ".join(table.split())
    if width >= 60:  # below, the counts alone are wider
        assert max(map(len, table.splitlines())) <= width


def test_long_tables_are_cut_and_say_so() -> None:
    model = nn.Sequential(*(nn.Linear(size + 1, 1) for size in range(230)))
    text = resolve(model).render()
    assert "... and 30 more rows (plan --json has all)" in text
