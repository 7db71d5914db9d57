"""What enters the optimizer, in which groups."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from frostline.config.models import OptimizerConfig
from frostline.errors import ConfigError, SelectorError
from frostline.training.optimizer import FUSED, OPTIMIZERS, build_optimizer
from frostline.tree import canonical_named_parameters


def build(
    toy: Any, freeze_config: Any = None, lr: float = 0.1, **values: Any
) -> tuple[torch.optim.Optimizer, Any, Any]:
    model = toy.model()
    plan = toy.plan(model, freeze_config)
    return build_optimizer(model, plan, OptimizerConfig.model_validate(values), lr=lr), model, plan


def test_only_what_the_plan_trains_enters_in_path_order(toy: Any):
    optimizer, model, plan = build(toy)
    (group,) = optimizer.param_groups
    assert group["names"] == list(plan.trainable)
    assert "embed.weight" not in group["names"]
    params = dict(canonical_named_parameters(model))
    assert all(params[name] is param for name, param in zip(group["names"], group["params"], strict=True))
    plan.verify(model, optimizer)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_optimizer_takes_a_step(toy: Any, name: str):
    optimizer, model, _ = build(toy, name=name)
    assert type(optimizer) is OPTIMIZERS[name]
    assert bool(optimizer.param_groups[0].get("fused")) == (name in FUSED)
    frozen = model.embed.weight.clone()
    before = model.head.weight.clone()
    model(torch.tensor([[1, 2, 3]])).sum().backward()
    optimizer.step()
    assert not model.head.weight.equal(before)
    assert model.embed.weight.equal(frozen)


def test_fused_adamw_equals_the_plain_formula(toy: Any):
    optimizer, model, plan = build(toy, weight_decay=0.1, betas=[0.8, 0.95], eps=1e-6)
    twin = toy.model()
    trained = [param for path, param in canonical_named_parameters(twin) if path in plan.trainable]
    reference = torch.optim.AdamW(
        trained, lr=0.1, weight_decay=0.1, betas=(0.8, 0.95), eps=1e-6, foreach=False, fused=False
    )
    for tokens in ([1, 2, 3], [4, 5, 6]):
        for each, stepper in ((model, optimizer), (twin, reference)):
            stepper.zero_grad()
            each(torch.tensor([tokens])).square().sum().backward()
            stepper.step()
    for ours, theirs in zip(optimizer.param_groups[0]["params"], trained, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_groups_by_selector_take_their_rate_and_decay(toy: Any):
    optimizer, _, plan = build(
        toy,
        lr=0.1,
        weight_decay=0.01,
        groups=[
            {"select": {"param": "*.bias"}, "weight_decay": 0.0},
            {"select": ["head", {"layers": "-1:"}], "lr": 0.5},
        ],
    )
    biases, last, rest = optimizer.param_groups
    assert all(name.endswith(".bias") for name in biases["names"])
    assert (biases["lr"], biases["weight_decay"]) == (0.1, 0.0)
    assert last["names"] == ["layers.2.norm.weight", "layers.2.linear.weight", "head.weight"]
    assert (last["lr"], last["initial_lr"], last["weight_decay"]) == (0.5, 0.5, 0.01)
    assert sorted(biases["names"] + last["names"] + rest["names"]) == sorted(plan.trainable)
    assert (rest["lr"], rest["weight_decay"]) == (0.1, 0.01)


def test_groups_may_take_everything(toy: Any):
    optimizer, _, plan = build(toy, groups=[{"select": {"param": "*"}, "lr": 0.5}])
    assert [group["names"] for group in optimizer.param_groups] == [list(plan.trainable)]


def test_case_89_a_group_that_gets_no_trained_parameter_is_an_error(toy: Any):
    with pytest.raises(ConfigError, match=r"optimizer group 0 gets no parameter(.|\n)*none of them trains"):
        build(toy, groups=[{"select": "embed", "lr": 0.5}])


def test_case_89_a_group_that_an_earlier_one_emptied_is_an_error(toy: Any):
    groups = [{"select": "head", "lr": 0.5}, {"select": {"param": "head.bias"}, "lr": 0.1}]
    with pytest.raises(ConfigError, match=r"optimizer group 1 gets no parameter(.|\n)*group 0 took them all"):
        build(toy, groups=groups)


def test_case_89_a_group_that_matches_nothing_names_the_nearest(toy: Any):
    with pytest.raises(SelectorError, match="head"):
        build(toy, groups=[{"select": "haed", "lr": 0.5}])


def test_an_optional_group_may_be_empty(toy: Any):
    optimizer, _, _ = build(toy, groups=[{"select": {"path": "embed", "optional": True}, "lr": 0.5}])
    assert len(optimizer.param_groups) == 1


def test_case_36_weight_decay_never_touches_frozen_tensors(toy: Any):
    optimizer, model, plan = build(toy, weight_decay=0.5)
    before = {path: param.clone() for path, param in canonical_named_parameters(model) if path in plan.frozen}
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.tensor([[1, 2, 3]])).square().sum().backward()
        optimizer.step()
    after = dict(canonical_named_parameters(model))
    assert before
    assert all(after[path].equal(value) for path, value in before.items())
