"""A plan carried over steps that replace parameters: known paths keep their decision, new ones get one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from frostline import LoRA, plan_of, prepare, resolve
from frostline.errors import PlanMismatchError

from .conftest import changed, encoder, optimizer_of, snapshot, step, trained

FREEZE: dict[str, Any] = {"freeze_modules": ["embed", {"layers": ":2"}]}


def replace_linears(model: nn.Module, names: list[str]) -> None:
    """A step that wraps linears into containers, as parallel and quantized layers do."""
    for name in names:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, nn.Sequential(nn.Linear(4, 4), nn.Identity()))


def test_nothing_replaced_gives_an_equal_plan() -> None:
    model, plan = prepare(encoder(), freeze_config=FREEZE)
    bound = plan.bind(model)
    assert bound == plan
    assert bound is not plan
    assert bound.notes == plan.notes
    assert plan_of(model) is bound


def test_the_lifecycle_on_one_process_with_containers_in_place_of_linears() -> None:
    """build -> resolve -> inject -> apply -> replace -> bind + verify -> optimizer -> verify -> step."""
    model, plan = prepare(encoder(), freeze_config=FREEZE, peft=LoRA(rank=2, target_modules=[{"layers": 2}]))
    replace_linears(model, ["layers.0.linear", "embed"])
    with pytest.raises(PlanMismatchError, match="not in the plan"):
        plan.verify(model)
    bound = plan.bind(model, step="parallelize")
    bound.verify(model)
    assert bound.notes[-1] == (
        "added by parallelize: embed.0.weight, embed.0.bias, layers.0.linear.0.weight, layers.0.linear.0.bias"
    )
    assert bound.decisions["embed.0.weight"].rule.text == 'freeze_modules "embed"'
    assert bound.decisions["layers.0.linear.0.bias"].rule.text == 'freeze_modules layers ":2"'
    assert trained(model) == set(bound.trainable) == set(plan.trainable)
    optimizer = optimizer_of(model)
    bound.verify(model, optimizer)
    with pytest.raises(PlanMismatchError):
        plan.verify(model)
    before = snapshot(model)
    model.train()
    for _ in range(2):
        step(model, optimizer)
    assert changed(model, before) & {name for name, _ in model.named_parameters()} == set(plan.trainable)
    assert not model.layers[0].training  # the new container is held still too


def test_an_added_parameter_keeps_its_flag_without_peft_and_is_frozen_with_it() -> None:
    for peft, flag in ((None, True), (LoRA(target_modules="head"), False)):
        model, plan = prepare(encoder(), peft=peft)
        model.add_module("extra", nn.Linear(1, 1))
        model.extra.bias.requires_grad_(False)
        bound = plan.bind(model, step="surgery")
        assert model.extra.weight.requires_grad == flag
        assert not model.extra.bias.requires_grad
        assert bound.decisions["extra.weight"].rule.text == "added by surgery"


def test_selectors_reach_into_the_container_that_stands_for_a_thawed_module() -> None:
    model, plan = prepare(
        encoder(), freeze_config={"freeze_modules": ["*"], "unfreeze_modules": [{"path": "layers.1.linear"}]}
    )
    replace_linears(model, ["layers.1.linear", "layers.0.linear"])
    assert set(plan.bind(model).trainable) == {"layers.1.linear.0.weight", "layers.1.linear.0.bias"}


def test_a_planned_parameter_that_vanished_without_replacement_is_an_error() -> None:
    model, plan = prepare(encoder(), freeze_config=FREEZE)
    model.register_module("head", None)
    with pytest.raises(
        PlanMismatchError, match=r"2 planned parameters vanished: head\.weight, head\.bias[\s\S]*after X"
    ):
        plan.bind(model, step="X")
    model.register_module("other", nn.Linear(4, 3))  # a replacement elsewhere is none
    with pytest.raises(PlanMismatchError, match="vanished"):
        plan.bind(model)


def test_another_shape_is_an_error() -> None:
    model, plan = prepare(encoder(), freeze_config=FREEZE)
    model.head = nn.Linear(4, 5)
    with pytest.raises(PlanMismatchError, match=r"head\.weight has shape \[5, 4\], but the plan was made for \[3, 4\]"):
        plan.bind(model)


def test_a_trained_parameter_that_became_integer_is_an_error_and_a_frozen_one_is_not() -> None:
    model, plan = prepare(encoder(), freeze_config=FREEZE)
    packed = nn.Parameter(torch.zeros(4, 4, dtype=torch.int8), requires_grad=False)
    model.embed.weight = packed
    assert "embed.weight" in plan.bind(model).frozen
    model.head.weight = nn.Parameter(torch.zeros(3, 4, dtype=torch.int8), requires_grad=False)
    with pytest.raises(PlanMismatchError, match=r"head\.weight is to train, but its dtype is int8 now"):
        plan.bind(model, step="quantize")


def pair(tied: bool) -> nn.ModuleDict:
    model = nn.ModuleDict({"embed": nn.Embedding(3, 4), "body": nn.Linear(4, 4), "head": nn.Linear(4, 3, bias=False)})
    if tied:
        model["head"].weight = model["embed"].weight
    return model


def test_tying_after_the_plan_is_fine_where_it_agrees_and_an_error_where_it_does_not() -> None:
    model = pair(tied=False)
    for frozen, agrees in ((["embed", "head"], True), (["embed"], False)):
        plan = resolve(model, freeze_config={"freeze_modules": frozen})
        tied = pair(tied=True)
        if agrees:
            bound = plan.bind(tied)
            assert bound.decisions["embed.weight"].aliases == ("head.weight",)
            assert bound.trainable == ("body.weight", "body.bias")
        else:
            with pytest.raises(PlanMismatchError, match=r"embed\.weight and head\.weight are one tensor now"):
                plan.bind(tied, step="tie_weights")


def test_untying_after_the_plan_gives_both_tensors_its_decision() -> None:
    plan = resolve(pair(tied=True), freeze_config={"freeze_modules": ["embed"]})
    bound = plan.bind(pair(tied=False))
    assert bound.frozen == ("embed.weight", "head.weight")
    assert bound.decisions["head.weight"].aliases == ()


def test_a_name_added_by_tying_follows_the_planned_one() -> None:
    model = pair(tied=False)
    model.register_module("head", None)
    plan = resolve(model, freeze_config={"freeze_modules": ["embed"]})
    bound = plan.bind(pair(tied=True), step="tie_weights")
    assert bound.frozen == ("embed.weight",)
    assert bound.decisions["head.weight"].path == "embed.weight"


def test_an_optimizer_over_tensors_without_values_is_refused() -> None:
    """Adapters that were added on the meta device stay there when the base is loaded: it has none for them."""
    model = encoder().to("meta")
    model, plan = prepare(model, peft=LoRA(rank=1, target_modules=["head"]))
    model.load_state_dict(encoder().state_dict(), assign=True, strict=False)
    bound = plan.bind(model, step="loading")
    bound.verify(model)  # flags alone
    with pytest.raises(PlanMismatchError, match=r"(?s)2 tensors that train have no values yet.*head\.lora_A.*do: "):
        bound.verify(model, optimizer_of(model))
