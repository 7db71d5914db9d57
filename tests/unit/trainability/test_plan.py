"""What a plan does to a model: apply, verify, compare, remember."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from frostline import LoRA, plan_of, prepare, resolve
from frostline.errors import PlanMismatchError
from frostline.preparation import release
from frostline.trainability import TrainabilityPlan, built_flags

from .conftest import changed, encoder, optimizer_of, snapshot, step, trained

FREEZE = {"freeze_modules": ["embed", {"layers": ":2"}]}


def test_case_15_exactly_what_the_plan_names_moves() -> None:
    for config in ({"freeze_modules": ["embed"]}, FREEZE, {"freeze_modules": ["*"], "unfreeze_modules": ["head"]}):
        model, plan = prepare(encoder(), freeze_config=config)
        assert trained(model) == set(plan.trainable)
        before, optimizer = snapshot(model), optimizer_of(model)
        model.train()
        for _ in range(3):
            step(model, optimizer)
        weights = {path for path, _ in model.named_parameters()}
        assert changed(model, before) & weights == set(plan.trainable)


def test_case_36_frozen_tensors_are_bit_identical_under_weight_decay_and_old_momentum() -> None:
    model = encoder()
    optimizer = optimizer_of(model)
    step(model, optimizer)  # every tensor has momentum now
    resolve(model, freeze_config=FREEZE).apply(model)
    before = snapshot(model)
    for _ in range(5):
        step(model, optimizer)
    assert not any(name.startswith(("embed", "layers.0", "layers.1")) for name in changed(model, before))


def test_case_21_case_30_flags_lost_by_code_that_replaces_parameters_are_found() -> None:
    model, plan = prepare(encoder(), freeze_config=FREEZE)
    plan.verify(model)
    model.embed.weight = nn.Parameter(model.embed.weight.detach())
    with pytest.raises(PlanMismatchError, match=r"1 place[\s\S]*embed\.weight: planned frozen, but is trained"):
        plan.verify(model)
    plan.bind(model).verify(model)
    assert not model.embed.weight.requires_grad


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda model: model.head.bias.requires_grad_(False), r"head\.bias: planned trained, but is frozen"),
        (lambda model: model.add_module("more", nn.Linear(1, 1, bias=False)), r"more\.weight: not in the plan"),
        (lambda model: model.register_module("head", None), r"head\.weight: planned, but not in the model"),
        (
            lambda model: setattr(model, "head", nn.Linear(4, 7)),
            r"head\.weight: planned shape \[3, 4\], but is \[7, 4\]",
        ),
    ],
)
def test_verify_names_every_difference_of_the_model(break_it: Callable[[Any], Any], message: str) -> None:
    model, plan = prepare(encoder(), freeze_config=FREEZE)
    break_it(model)
    with pytest.raises(PlanMismatchError, match=message):
        plan.verify(model)


def test_verify_compares_the_optimizer_by_identity() -> None:
    model, plan = prepare(encoder(), freeze_config=FREEZE)
    plan.verify(model, optimizer_of(model))
    params = dict(model.named_parameters())
    chosen = [params[path] for path in plan.trainable]
    with pytest.raises(PlanMismatchError, match=r"embed\.weight: frozen, but in the optimizer"):
        plan.verify(model, torch.optim.SGD([*chosen, params["embed.weight"]]))
    with pytest.raises(PlanMismatchError, match=r"head\.bias: trains, but is not in the optimizer"):
        plan.verify(model, torch.optim.SGD([param for param in chosen if param is not params["head.bias"]]))
    optimizer = torch.optim.SGD(chosen)
    model.head.bias = nn.Parameter(model.head.bias.detach().clone())  # equal values, another object
    with pytest.raises(PlanMismatchError, match="2 places") as caught:
        plan.verify(model, optimizer)
    assert "holds a tensor that is not a parameter of the model" in str(caught.value)
    assert "head.bias: trains, but is not in the optimizer" in str(caught.value)


def test_verify_counts_a_tensor_that_is_twice_in_the_optimizer_and_cuts_long_lists() -> None:
    model, plan = prepare(encoder(), freeze_config=FREEZE)
    optimizer = optimizer_of(model)
    optimizer.param_groups[0]["params"].append(model.head.bias)
    with pytest.raises(PlanMismatchError, match=r"head\.bias: 2 times in the optimizer"):
        plan.verify(model, optimizer)
    with pytest.raises(PlanMismatchError, match=r"18 places[\s\S]*and 6 more"):
        plan.verify(nn.Linear(4, 4), None)


def test_apply_refuses_a_model_of_other_parameters_and_changes_nothing() -> None:
    plan = resolve(encoder(), freeze_config=FREEZE, peft=LoRA(target_modules="head"))
    model = encoder()
    with pytest.raises(PlanMismatchError, match="has 0 parameters unknown to the plan and lacks 2 of it"):
        plan.apply(model)
    assert all(param.requires_grad for param in model.parameters())


def test_apply_gives_a_tensor_that_was_untied_since_the_decision_of_its_old_name() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    plan = resolve(model, freeze_config={"freeze_modules": [{"param": "*.weight"}]})
    model[1].weight = nn.Parameter(torch.ones(2, 2))
    plan.apply(model)
    assert trained(model) == {"0.bias", "1.bias"}


def test_applying_makes_the_plan_that_of_the_model_and_remembers_how_it_was_built() -> None:
    model = encoder()
    model.head.bias.requires_grad_(False)
    with pytest.raises(PlanMismatchError, match="this model has no plan"):
        plan_of(model)
    first = resolve(model, freeze_config=FREEZE)
    first.apply(model)
    assert plan_of(model) is first
    # A second config starts from the model as built, not from what the first one froze.
    second = resolve(model, freeze_config={"freeze_modules": ["head"]})
    assert second == resolve(_built_with_frozen_bias(), freeze_config={"freeze_modules": ["head"]})
    second.apply(model)
    assert "embed.weight" in trained(model)
    assert plan_of(model) is second
    release(model)
    assert built_flags(model) is None
    assert trained(model) == {name for name, _ in model.named_parameters()} - {"head.bias"}


def _built_with_frozen_bias() -> nn.Module:
    model = encoder()
    model.head.bias.requires_grad_(False)
    return model


def test_case_45_case_46_the_plan_of_a_compiled_model_is_that_of_the_bare_one_and_gradients_arrive() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    compiled = torch.compile(model, backend="eager")
    assert isinstance(compiled, nn.Module)
    for frozen in ("1", "0"):
        _, plan = prepare(compiled, freeze_config={"freeze_modules": [frozen]})
        assert plan == resolve(model, freeze_config={"freeze_modules": [frozen]})
        assert plan_of(model) is plan
        compiled(torch.ones(2, 4)).sum().backward()
        plan.verify(compiled)
        assert {name for name, param in model.named_parameters() if param.grad is not None} == set(plan.trainable)


def test_json_holds_every_parameter_and_is_text() -> None:
    plan = resolve(encoder(), freeze_config=FREEZE, peft=LoRA(rank=1, target_modules="head"))
    data = json.loads(plan.dumps())
    assert data == plan.to_json()
    assert list(data["parameters"]) == list(plan.decisions)
    assert {path for path, entry in data["parameters"].items() if entry["trains"]} == set(plan.trainable)
    assert data["parameters"]["head.lora_A.default.weight"] == {
        "trains": True,
        "rule": 'target_modules "head"',
        "kind": "adapter",
        "shape": [1, 4],
        "dtype": "float32",
    }
    assert (data["peft"], data["frozen_mode"], data["digest"]) == ("LoRA r1", "eval", plan.digest)


def test_diff_has_one_line_for_each_difference() -> None:
    ours = resolve(encoder(), freeze_config={"freeze_modules": ["embed"]})
    other_model = encoder()
    other_model.head = nn.Linear(4, 2, bias=False)
    other_model.extra = nn.Linear(1, 1, bias=False)
    other = resolve(other_model, freeze_config={"freeze_modules": [{"param": "embed.weight"}]})
    lines = ours.diff(other)
    assert [line.split(":")[0] for line in lines] == ["~ embed.bias", "~ head.weight", "- head.bias", "+ extra.weight"]
    assert lines[0].startswith("~ embed.bias: frozen -> trained (")
    assert "baseline: trains as built)" in lines[0]
    assert lines[1] == "~ head.weight: shape [3, 4] -> [2, 4]"
    assert ours.diff(ours) == []
    assert ours != other
    assert hash(ours) != hash(other)
    assert ours != "a plan"


def test_a_prepared_model_can_be_copied_and_pickled() -> None:
    model, plan = prepare(encoder(), freeze_config=FREEZE)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        twin.train()
        assert not twin.layers[0].training
        assert twin.layers[2].training
        assert model.layers[0] is not twin.layers[0]
        plan.verify(twin)
        assert isinstance(plan_of(twin), TrainabilityPlan)
        twin.layers[0].train()
        assert not twin.layers[0].dropout.training
    assert repr(plan).startswith(f"<TrainabilityPlan {plan.digest[:8]}: 6 of 16 tensors train>")
