"""Which parameters may stay without a gradient in single steps: those that a config tags, and experts."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from frostline import LoRA, prepare, resolve
from frostline.errors import SelectorError
from frostline.trainability import TrainabilityPlan

from .conftest import encoder


class Fused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(1, 1)


def mixture(experts: nn.Module | None = None) -> nn.ModuleDict:
    experts = experts if experts is not None else nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
    return nn.ModuleDict({"mlp": nn.ModuleDict({"experts": experts, "gate": nn.Linear(2, 2)}), "head": nn.Linear(2, 2)})


def conditional(plan: TrainabilityPlan) -> set[str]:
    return {path for path, decision in plan.decisions.items() if decision.conditional}


def test_nothing_is_conditional_without_a_tag() -> None:
    assert conditional(resolve(encoder())) == set()


def test_what_a_tagged_entry_selects_is_conditional() -> None:
    config = {"freeze_modules": "*", "unfreeze_modules": [{"layers": -1, "conditional": True}, "head"]}
    plan = resolve(encoder(), freeze_config=config)
    assert conditional(plan) == {path for path in plan.trainable if path.startswith("layers.2.")}
    again = {**config, "unfreeze_modules": [*config["unfreeze_modules"], {"param": "layers.2.norm.*"}]}
    assert conditional(resolve(encoder(), freeze_config=again)) == conditional(plan)  # a tag is not taken back


def test_false_is_no_tag() -> None:
    assert (
        conditional(resolve(encoder(), freeze_config={"unfreeze_modules": {"type": "Linear", "conditional": False}}))
        == set()
    )


def test_the_adapters_of_a_tagged_target_are_conditional_before_and_after_injection() -> None:
    method = LoRA(rank=1, target_modules=["head", {"path": "layers.0.linear", "conditional": True}])
    bare = resolve(encoder(), peft=method)
    expected = {f"layers.0.linear.lora_{part}.default.weight" for part in "AB"}
    assert conditional(bare) == expected
    model, prepared = prepare(encoder(), peft=method)
    assert conditional(prepared) == conditional(resolve(model, peft=method)) == expected


def test_a_digest_does_not_depend_on_tags() -> None:
    plain = resolve(encoder(), freeze_config={"unfreeze_modules": ["head"]})
    assert plain == resolve(encoder(), freeze_config={"unfreeze_modules": [{"path": "head", "conditional": True}]})


@pytest.mark.parametrize(
    "experts", [None, nn.ModuleDict({"a": nn.Linear(2, 2)}), type("Bank", (nn.ModuleList,), {})([nn.Linear(1, 1)])]
)
def test_experts_are_conditional_without_being_told_and_a_note_counts_them(experts: nn.Module | None) -> None:
    plan = resolve(mixture(experts))
    assert conditional(plan) == {path for path in plan.decisions if path.startswith("mlp.experts.")}
    (note,) = plan.notes
    assert note.startswith(
        f"{len(conditional(plan))} trained tensors below a container named experts may have no gradient in single "
        "steps: conditional without a tag (mlp.experts."
    )


def test_adapters_of_experts_are_conditional_too() -> None:
    plan = resolve(mixture(), peft=LoRA(rank=1))
    assert conditional(plan) >= {path for path in plan.trainable if path.startswith("mlp.experts.")}
    assert not any(path.startswith(("mlp.gate", "head")) for path in conditional(plan))
    assert plan.notes[0].startswith("6 trained tensors below a container named experts")


def test_fused_experts_and_similar_names_are_not() -> None:
    assert conditional(resolve(mixture(Fused()))) == set()
    other = nn.ModuleDict({"shared_experts": nn.ModuleList([nn.Linear(1, 1)]), "experts_norm": nn.Linear(1, 1)})
    plan = resolve(other)
    assert conditional(plan) == set()
    assert plan.notes == ()


def test_frozen_experts_need_no_note_and_tagged_ones_are_not_counted_as_untold() -> None:
    assert resolve(mixture(), freeze_config={"freeze_modules": "experts"}).notes == ()
    tagged = resolve(mixture(), freeze_config={"unfreeze_modules": {"glob": "*experts", "conditional": True}})
    assert tagged.notes == ()
    assert len(conditional(tagged)) == 6


def test_a_tensor_that_an_unconditional_module_uses_too_is_not() -> None:
    model = mixture()
    model["mlp"]["experts"][0].weight = model["head"].weight
    plan = resolve(model)
    assert not plan.decisions["head.weight"].conditional
    assert len(conditional(plan)) == 5


def test_what_a_step_adds_below_a_tagged_path_is_conditional() -> None:
    model, plan = prepare(
        encoder(), freeze_config={"freeze_modules": "*", "unfreeze_modules": [{"path": "head", "conditional": True}]}
    )
    model.head = nn.Sequential(nn.Linear(4, 3))
    assert conditional(plan.bind(model)) == {"head.0.weight", "head.0.bias"}


PLACES: list[tuple[dict[str, Any], str]] = [
    (
        {"freeze_config": {"freeze_modules": [{"path": "head", "conditional": True}]}},
        r"freeze_modules\[0\]\.conditional",
    ),
    ({"peft": {"exclude_modules": [{"path": "head", "conditional": True}]}}, r"exclude_modules\[0\]\.conditional"),
    (
        {"freeze_config": {"unfreeze_modules": [{"type": "Linear", "within": {"path": "head", "conditional": True}}]}},
        r"unfreeze_modules\[0\]\.within\.conditional",
    ),
    (
        {"freeze_config": {"unfreeze_modules": {"type": "Linear", "except": [{"path": "head", "conditional": True}]}}},
        r"unfreeze_modules\.except\[0\]\.conditional",
    ),
]


@pytest.mark.parametrize(("blocks", "where"), PLACES)
def test_elsewhere_it_is_refused_with_the_places_where_it_has_a_meaning(blocks: dict[str, Any], where: str) -> None:
    with pytest.raises(
        SelectorError, match=rf"(?s)`conditional` has no meaning here.*{where}.*entries of unfreeze_mod"
    ):
        resolve(encoder(), **blocks)
