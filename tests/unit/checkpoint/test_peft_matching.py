"""Our reading of peft's matching rules, held against the installed peft."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from frostline.checkpoint.peft_matching import (
    modules_to_save_for,
    saved_modules_of,
    shadowed_targets,
    target_modules_for,
    targets_of,
)

MODULES = ["", "a", "a.fc", "a.pre_fc", "b", "b.fc", "b.layers", "b.layers.1", "b.layers.1.fc", "b.layers.10", "fc"]


def test_one_word_where_it_is_enough() -> None:
    assert target_modules_for({"a.fc", "b.fc", "b.layers.1.fc", "fc"}, MODULES) == ["fc"]


def test_a_longer_end_where_a_word_takes_too_much() -> None:
    assert target_modules_for({"b.layers.1.fc"}, MODULES) == ["1.fc"]
    assert target_modules_for({"a.fc", "b.fc"}, MODULES) == ["a.fc", "b.fc"]


def test_a_regular_expression_where_even_the_full_path_takes_too_much() -> None:
    assert target_modules_for({"fc"}, MODULES) == "fc"
    assert target_modules_for({"fc", "b.fc"}, MODULES) == r"b\.fc|fc"


@given(st.sets(st.sampled_from(MODULES[1:]), min_size=1))
def test_the_config_chooses_exactly_the_targets(targets: set[str]) -> None:
    assert targets_of(target_modules_for(targets, MODULES), MODULES) == targets


def test_peft_also_takes_a_name_that_only_ends_alike() -> None:
    modules = ["classifier", "pre_classifier", "body"]
    assert saved_modules_of(["classifier"], modules, []) == {"classifier", "pre_classifier"}
    assert modules_to_save_for({"classifier"}, modules, []) == ([], set())
    assert modules_to_save_for({"classifier", "pre_classifier"}, modules, []) == (
        ["classifier"],
        {"classifier", "pre_classifier"},
    )
    assert modules_to_save_for({"pre_classifier"}, modules, []) == (["pre_classifier"], {"pre_classifier"})


def test_names_that_would_take_peft_s_own_wrapper_are_not_used() -> None:
    assert modules_to_save_for({"model"}, ["model", "head"], []) == ([], set())


def test_a_module_with_an_adapter_inside_is_shadowed() -> None:
    assert shadowed_targets(["head"], {"head", "x.head.fc", "headless.fc"}) == {"head", "x.head.fc"}


class Nest(nn.Module):
    """A module tree from paths; every module is a small linear."""

    def __init__(self, paths: list[str]) -> None:
        super().__init__()
        for path in paths:
            here: nn.Module = self
            for part in path.split("."):
                if part not in here._modules:
                    here.add_module(part, nn.Linear(2, 2))
                here = here._modules[part]  # type: ignore[assignment]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.parametrize("task_type", [None, "SEQ_CLS"])
def test_a_name_that_chooses_by_the_prefix_of_the_wrapper_is_not_used(task_type: str | None) -> None:
    """`model.fc` also takes `fc` where peft matches `base_model.model.fc`, which it does for some task types only."""
    peft = pytest.importorskip("peft")
    model = Nest(["fc", "q.fc", "model.fc", "target"])
    modules = [name for name, _ in model.named_modules()]
    names, covered = modules_to_save_for({"fc", "model.fc"}, modules, {"target"})
    assert (names, covered) == ([], set()), "both are left to plain keys"
    names, covered = modules_to_save_for({"q.fc", "model.fc", "fc"}, modules, {"target"})
    assert (names, covered) == (["fc"], {"q.fc", "model.fc", "fc"})
    config = peft.LoraConfig(r=1, target_modules=["target"], modules_to_save=names, task_type=task_type)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = peft.get_peft_model(model, config)
    saved = [n for n, module in wrapped.named_modules() if isinstance(module, peft.utils.ModulesToSaveWrapper)]
    assert {name.removeprefix("base_model.model.") for name in saved} == covered


NAMES = ["fc", "pre_fc", "q", "lora_q", "model", "default", "0", "1"]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_peft_itself_chooses_what_we_say(data: st.DataObject) -> None:
    peft = pytest.importorskip("peft")
    path = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(".".join)
    model = Nest(data.draw(st.lists(path, min_size=2, max_size=6)))
    modules = [name for name, _ in model.named_modules()]
    leaves = [name for name, module in model.named_modules() if name and not list(module.children())]
    targets = data.draw(st.sets(st.sampled_from(leaves), min_size=1))
    wanted = data.draw(st.sets(st.sampled_from(leaves))) - targets
    names, covered = modules_to_save_for(wanted, modules, targets)
    config = peft.LoraConfig(r=1, target_modules=target_modules_for(targets, modules), modules_to_save=names or None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = peft.get_peft_model(model, config)
    found = dict(wrapped.named_modules())
    adapted = {name for name, module in found.items() if isinstance(module, peft.tuners.lora.LoraLayer)}
    saved = {name for name, module in found.items() if isinstance(module, peft.utils.ModulesToSaveWrapper)}
    assert {name.removeprefix("base_model.model.") for name in adapted} == targets
    assert {name.removeprefix("base_model.model.") for name in saved} == covered
