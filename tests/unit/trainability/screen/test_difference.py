"""Differences of two plans: both rules, folded where equal, from the JSON of a file as well."""

from __future__ import annotations

import json

import torch
from torch import nn

from frostline import LoRA, resolve
from frostline.trainability import diff_plans, fold_differences

from ..conftest import encoder


def folded(ours: object, theirs: object) -> list[str]:
    left, right = (json.loads(json.dumps(plan.to_json())) for plan in (ours, theirs))  # type: ignore[attr-defined]
    return [str(line) for line in fold_differences(diff_plans(left, right))]


def test_lines_that_differ_in_a_number_of_the_path_are_one() -> None:
    frozen = resolve(encoder(), freeze_config={"freeze_modules": ["layers"]})
    thawed = resolve(encoder(), freeze_config={"freeze_modules": ["layers"], "unfreeze_modules": [{"param": "*.bias"}]})
    both_rules = 'frozen -> trained (freeze_modules "layers" -> unfreeze_modules param "*.bias")'
    assert folded(frozen, thawed) == [
        f"~ layers.0-2.linear.bias (3 parameters): {both_rules}",
        f"~ layers.0-2.norm.bias (3 parameters): {both_rules}",
    ]
    assert folded(thawed, thawed) == []


def test_numbers_on_two_levels_fold_and_counts_add_up() -> None:
    def layers() -> nn.Module:
        return nn.ModuleList(nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(3)) for _ in range(4))

    ours, theirs = resolve(layers(), freeze_config={"freeze_modules": ["0"]}), resolve(layers())
    lines = fold_differences(diff_plans(ours.to_json(), theirs.to_json()))
    assert sum(line.count for line in lines) == len(diff_plans(ours.to_json(), theirs.to_json()))
    assert [line.path for line in lines] == ["0.0-2.weight", "1-3.0.weight"]


def test_a_module_that_differs_as_a_whole_is_one_line_and_one_that_does_not_is_not() -> None:
    frozen = resolve(encoder(), freeze_config={"freeze_modules": ["layers"]}).to_json()
    thawed = resolve(
        encoder(), freeze_config={"freeze_modules": ["layers"], "unfreeze_modules": ["layers.0", "layers.2.linear"]}
    ).to_json()
    every, lines = diff_plans(frozen, thawed), fold_differences(diff_plans(frozen, thawed), frozen["parameters"])
    assert [line.path for line in lines][:1] == ["layers.0"]
    assert "layers.2" not in {line.path for line in lines}
    assert sum(line.count for line in lines) == len(every)


def test_a_phase_that_only_one_plan_has_says_all_that_it_does_folded() -> None:
    """Row 37: when, which rate, what starts, what freezes; of equal phases nothing, of unequal ones the difference."""

    def plan(*phases: object) -> dict[str, object]:
        return resolve(encoder(), freeze_config={"freeze_modules": ["layers"], "phases": list(phases)}).to_json()

    thaw = {"at": {"step": 10}, "unfreeze_modules": ["layers"], "freeze_modules": ["head"], "lr": 1e-4}
    ours, theirs = plan(), plan(thaw)
    every = diff_plans(ours, theirs)
    lines = fold_differences(every, ours["parameters"])  # type: ignore[arg-type]
    assert list(map(str, lines)) == [
        "+ phase 1: at step 10, lr 0.0001",
        "+ phase 1: layers (12 parameters) starts to train",
        "+ phase 1: head (2 parameters) freezes",
    ]
    assert sum(line.count for line in lines) == sum(line.count for line in every) == 14
    assert {line.phase for line in lines} == {1}
    last = plan({**thaw, "unfreeze_modules": ["layers.1", "layers.2"]})
    assert list(map(str, fold_differences(diff_plans(theirs, last), ours["parameters"]))) == [  # type: ignore[arg-type]
        "- phase 1: layers.0 (4 parameters) starts to train"
    ]


def test_what_only_one_has_comes_with_its_rule_and_shapes_with_both() -> None:
    ours = resolve(encoder(), peft=LoRA(rank=2, target_modules=["linear"]))
    theirs = resolve(encoder(), peft=LoRA(rank=3, target_modules=["linear", "head"]))
    lines = folded(ours, theirs)
    assert "~ layers.0-2.linear.lora_A.default.weight (3 parameters): shape [2, 4] -> [3, 4]" in lines
    assert '+ head.lora_A.default.weight: trained, only in the other plan (target_modules "head")' in lines
    assert '- head.lora_A.default.weight: trained, not in the other plan (target_modules "head")' in folded(
        theirs, ours
    )


def test_the_json_of_a_parameter_tells_where_its_rule_stands() -> None:
    from frostline.config.origin import Origins

    origins = Origins("run.yaml", {("freeze_config", "freeze_modules", 0): 7})
    with torch.device("meta"):
        plan = resolve(encoder(), freeze_config={"freeze_modules": ["embed"]}, origins=origins)
    entry = plan.to_json()["parameters"]["embed.weight"]
    assert (entry["file"], entry["line"]) == ("run.yaml", 7)
    assert "line" not in plan.to_json()["parameters"]["head.weight"]
