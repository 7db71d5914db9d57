"""Phases of a plan: who trains in which, and what the plan says of it."""

from __future__ import annotations

import fnmatch
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from frostline import LoRA, prepare, resolve
from frostline.errors import ConfigError, PlanMismatchError, SelectorError
from frostline.trainability import TrainabilityPlan

from ..conftest import encoder

LAST = {"at": {"step": 2}, "unfreeze_modules": [{"layers": "-1:"}]}


def plan_with(*phases: Any, model: nn.Module | None = None, peft: Any = None, **block: Any) -> TrainabilityPlan:
    config = {"freeze_modules": ["embed", "layers"], **block, "phases": list(phases)}
    return resolve(encoder() if model is None else model, freeze_config=config, peft=peft)


def in_head(paths: Any) -> set[str]:
    return {path.rpartition(".")[0] for path in paths}


def test_each_phase_is_laid_over_the_one_before() -> None:
    plan = plan_with(
        LAST,
        {"at": {"step": 4}, "freeze_modules": ["head"], "unfreeze_modules": ["embed"]},
        {"at": {"step": 6}, "lr": 1e-4},
    )
    trained = [in_head(plan.in_phase(index).trainable) for index in range(4)]
    last = {"layers.2.linear", "layers.2.norm"}
    assert trained == [{"head"}, {"head", *last}, {"embed", *last}, {"embed", *last}]
    assert [(len(phase.thaws), len(phase.freezes), phase.lr) for phase in plan.phases] == [
        (4, 0, None),
        (2, 2, None),
        (0, 0, 1e-4),
    ]
    assert in_head(plan.ever_trained) == {"head", "embed", *last}
    assert set(plan.never_trained) == set(plan.decisions) - set(plan.ever_trained)
    assert [in_head(plan.in_phase(index).kept) for index in range(3)] == [
        {"head"},
        {"head", *last},
        {"head", "embed", *last},
    ]
    assert 'unfreeze_modules "embed" from step 4 on' in str(plan.in_phase(2).decisions["embed.weight"].rule)
    assert plan.in_phase(3).in_phase(0).trainable == plan.trainable
    assert [plan.phase_at(step) for step in (0, 1, 2, 3, 4, 5, 6, 99)] == [0, 0, 1, 1, 2, 2, 3, 3]
    with pytest.raises(PlanMismatchError, match="no phase 4"):
        plan.in_phase(4)
    with pytest.raises(PlanMismatchError, match="no phase -1"):
        plan.in_phase(-1)


PATHS = sorted(name for name, _ in encoder().named_parameters())
GLOBS = st.sampled_from(["*", "layers.*", "*.bias", "*.weight", "head*", "embed*", "*.1.*", "layers.2*", "*norm*"])
LISTS = st.lists(GLOBS, max_size=2)


@settings(max_examples=60, deadline=None)
@given(LISTS, LISTS, st.lists(st.tuples(LISTS, LISTS), min_size=1, max_size=3))
def test_phases_equal_the_definition_as_a_naive_loop(
    freeze: list[str], unfreeze: list[str], phases: list[tuple[list[str], list[str]]]
) -> None:
    def selectors(globs: list[str]) -> list[dict[str, str]]:
        return [{"param": glob} for glob in globs]

    trained, expected = set(PATHS), list[set[str]]()
    for freezing, thawing in [(freeze, unfreeze), *phases]:
        trained = {path for path in trained if not any(fnmatch.fnmatchcase(path, glob) for glob in freezing)}
        trained |= {path for path in PATHS if any(fnmatch.fnmatchcase(path, glob) for glob in thawing)}
        expected.append(set(trained))
    config = {
        "freeze_modules": selectors(freeze),
        "unfreeze_modules": selectors(unfreeze),
        "phases": [
            {"at": {"step": step}, "lr": 1.0, "freeze_modules": selectors(left), "unfreeze_modules": selectors(right)}
            for step, (left, right) in enumerate(phases, start=1)
        ],
    }
    idle = any(
        before == after and (left or right)
        for before, after, (left, right) in zip(expected, expected[1:], phases, strict=False)
    )
    if not all(expected) or idle:
        with pytest.raises(ConfigError, match=r"nothing trains|changes nothing"):
            resolve(encoder(), freeze_config=config)
        return
    plan = resolve(encoder(), freeze_config=config)
    for index, paths in enumerate(expected):
        now = plan.in_phase(index)
        assert set(now.trainable) == paths
        assert set(now.frozen) == set(PATHS) - paths
        assert set(now.kept) == set().union(*expected[: index + 1])
        assert now.ever_trained == plan.ever_trained
        assert now.digest == plan.digest
    assert set(plan.ever_trained) == set().union(*expected)


def test_the_digest_covers_the_steps_and_who_trains_in_each_and_nothing_else() -> None:
    plan = plan_with(LAST)
    same = plan_with({**LAST, "unfreeze_modules": ["layers.2"], "lr": 3e-4})  # another rule, another rate
    others = [
        resolve(encoder(), freeze_config={"freeze_modules": ["embed", "layers"]}),
        plan_with({**LAST, "at": {"step": 3}}),
        plan_with({**LAST, "at": {"epoch": 2}}),
        plan_with({**LAST, "unfreeze_modules": [{"layers": "-2:"}]}),
        plan_with(LAST, {"at": {"step": 4}, "freeze_modules": ["head"]}),
    ]
    assert same.digest == plan.digest
    assert len({plan.digest, *(other.digest for other in others)}) == 6
    assert plan.in_phase(1) == plan


def test_without_phases_the_digest_is_what_it_always_was() -> None:
    """Checkpoints of earlier versions load: computed here the way that they did."""
    import hashlib

    plan = resolve(encoder(), freeze_config={"freeze_modules": ["embed"], "phases": []})
    lines = sorted(
        f"{entry.path}\t{'x'.join(map(str, entry.shape))}\t{int(entry.trains)}" for entry in plan.decisions.values()
    )
    assert plan.digest == hashlib.sha256("\n".join(lines).encode()).hexdigest()
    assert "phases" not in plan.to_json()
    assert (plan.phases, plan.phase, plan.ever_trained) == ((), 0, plan.trainable)
    assert plan.phase_at(10**6) == 0
    assert plan.place_phases(10, 1) is plan


def test_epochs_are_placed_once_the_length_of_one_is_known() -> None:
    plan = plan_with({**LAST, "at": {"epoch": 1}}, {"at": {"step": 12}, "lr": 1e-4})
    with pytest.raises(PlanMismatchError, match=r"step of the phase at epoch 1 is not known[\s\S]*place_phases"):
        plan.phase_at(0)
    placed = plan.place_phases(5, total_steps=13)
    assert [phase.step for phase in placed.phases] == [5, 12]
    assert placed.digest == plan.digest
    assert placed.in_phase(1).phase_at(5) == 1
    with pytest.raises(ConfigError, match=r"at step 12 stands behind the one at epoch 1[\s\S]*12 steps an epoch"):
        plan.place_phases(12)
    with pytest.raises(ConfigError, match=r"step 12 never comes into force: the run has 12 steps"):
        plan.place_phases(5, total_steps=12)
    with pytest.raises(ConfigError, match="2 problems"):
        plan.place_phases(5, total_steps=5)


def test_selectors_of_phases_that_match_nothing_are_refused_with_all_others() -> None:
    with pytest.raises(SelectorError, match="2 problems") as caught:
        plan_with({"at": {"step": 1}, "unfreeze_modules": ["layer.2"]}, freeze_modules=["embeds"])
    assert "phases[0].unfreeze_modules" in str(caught.value)
    maybe = {"path": "x", "optional": True}
    noted = plan_with({"at": {"step": 1}, "freeze_modules": [maybe, "head"], "unfreeze_modules": ["embed"]})
    assert any("optional selector" in note for note in noted.notes)


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        ({"freeze_modules": ["embed"]}, r"at step 3 changes nothing[\s\S]*is frozen before"),
        ({"unfreeze_modules": ["head"], "lr": 1}, r"at step 3 changes nothing[\s\S]*trains before"),
        ({"freeze_modules": ["head"], "unfreeze_modules": ["head"]}, "changes nothing"),
        ({"freeze_modules": ["head"]}, r"nothing trains from step 3 on[\s\S]*head\.weight"),
    ],
)
def test_phases_that_change_nothing_or_stop_everything_are_refused(phase: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_with({"at": {"step": 3}, **phase})


def test_a_new_parameter_may_be_frozen_in_some_phases_but_not_in_all() -> None:
    late = {"freeze_modules": ["head"], "phases": [{"at": {"step": 1}, "unfreeze_modules": ["head"]}]}
    plan = resolve(encoder(), freeze_config=late, new=["head.weight", "head.bias"])
    assert "head.weight" in plan.kept  # random, and not in the base files: kept from the start
    with pytest.raises(ConfigError, match="random for ever"):
        resolve(
            encoder(),
            freeze_config={"freeze_modules": ["head"], "phases": [{"at": {"step": 1}, "freeze_modules": ["embed"]}]},
            new=["head.weight"],
        )


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body, self.lm_head = nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5, bias=False)
        self.lm_head.weight = self.embed.weight


def test_one_name_thaws_a_tied_tensor_that_another_name_froze_before() -> None:
    block = {"freeze_modules": ["embed"], "phases": [{"at": {"step": 1}, "unfreeze_modules": ["lm_head"]}]}
    plan = resolve(Tied(), freeze_config=block)
    assert "embed.weight" not in plan.trainable
    assert "embed.weight" in plan.in_phase(1).trainable
    both = {"at": {"step": 1}, "freeze_modules": ["embed"], "unfreeze_modules": ["lm_head"]}
    with pytest.raises(SelectorError, match="both frozen and trained"):
        resolve(Tied(), freeze_config={"phases": [both]})


def test_an_integer_parameter_that_a_phase_thaws_is_refused_once() -> None:
    model = encoder()
    model.codes = nn.Parameter(torch.zeros(3, dtype=torch.uint8), requires_grad=False)
    phases = [{"at": {"step": 1}, "unfreeze_modules": [{"param": "codes"}]}, {"at": {"step": 2}, "lr": 1}]
    with pytest.raises(ConfigError, match=r"^\s*codes is to train, but its dtype is uint8"):
        resolve(model, freeze_config={"phases": phases})


# ---- with adapters


def test_adapters_are_injected_once_and_skip_what_any_phase_trains_in_full() -> None:
    model, plan = prepare(
        encoder(),
        freeze_config={"phases": [{"at": {"step": 1}, "unfreeze_modules": ["layers.2"]}]},
        peft=LoRA(rank=2, target_modules=["linear"]),
    )
    names = {name for name, _ in model.named_parameters() if "lora" in name}
    assert names == {f"layers.{i}.linear.lora_{side}.default.weight" for i in (0, 1) for side in "AB"}
    assert "not adapted, trained in full: 1 module (layers.2.linear)" in plan.notes
    assert set(plan.trainable) == names
    assert "layers.2.linear.weight" in plan.in_phase(1).trainable
    assert set(plan.in_phase(1).kept) == names | set(plan.phases[0].thaws)


def test_a_phase_with_a_rate_may_select_what_this_model_lacks() -> None:
    optional = {"unfreeze_modules": [{"path": "vision", "optional": True}]}
    assert plan_with({"at": {"step": 3}, **optional, "lr": 0.1}).phases[0].lr == 0.1
    with pytest.raises(ConfigError, match=r"changes nothing[\s\S]*or matches nothing here \(it is optional\)"):
        plan_with({"at": {"step": 3}, **optional})


def test_a_phase_freezes_adapters_through_param_and_they_are_kept() -> None:
    config = {"phases": [{"at": {"step": 1}, "freeze_modules": [{"param": "*lora_A*"}]}]}
    plan = resolve(encoder(), freeze_config=config, peft=LoRA(rank=2, target_modules=["linear"]))
    assert all("lora_B" in path for path in plan.in_phase(1).trainable)
    assert plan.in_phase(1).kept == plan.kept
    module = {"phases": [{"at": {"step": 1}, "freeze_modules": ["layers"]}]}
    with pytest.raises(ConfigError, match=r"changes nothing[\s\S]*adapters with \{param"):
        resolve(encoder(), freeze_config=module, peft=LoRA(rank=2, target_modules=["linear"]))


# ---- what the plan says of them


def test_the_screen_json_and_diff_tell_the_phases() -> None:
    plan = plan_with({**LAST, "at": {"epoch": 1}, "lr": 1e-4}, {"at": {"epoch": 2}, "freeze_modules": ["head"]})
    text = plan.render()
    assert "phase    1 from epoch 1 on: 4 tensors of layers.2 start to train; lr 0.0001; then 43 train" in text
    assert "phase    2 from epoch 2 on: 2 tensors of head freeze; then 28 train" in text
    assert "1 from step 5 (epoch 1) on" in plan.place_phases(5).render()
    first, second = plan.to_json()["phases"]
    assert (first["at"], first["step"], first["lr"], len(first["thaws"])) == ("epoch 1", None, 1e-4, 4)
    assert second["freezes"] == ["head.weight", "head.bias"]
    other = plan_with({"at": {"epoch": 1}, "unfreeze_modules": ["layers.2.linear"], "lr": 1e-3})
    assert plan.diff(other) == [
        "~ phase 1: lr 0.0001 -> 0.001",
        "- phase 1: layers.2.norm.weight starts to train",
        "- phase 1: layers.2.norm.bias starts to train",
        "- phase 2: at epoch 2",
        "- phase 2: head.weight freezes",
        "- phase 2: head.bias freezes",
    ]
    assert other.diff(plan)[-3:] == [
        "+ phase 2: at epoch 2",
        "+ phase 2: head.weight freezes",
        "+ phase 2: head.bias freezes",
    ]
    unset = plan_with({**LAST, "at": {"epoch": 1}})
    assert unset.diff(plan)[0] == "~ phase 1: lr that of the phase before -> 0.0001"
    assert plan.diff(plan.in_phase(0)) == []


def test_binding_keeps_phase_steps_and_decides_what_was_added_for_each_phase() -> None:
    model = encoder()
    plan = plan_with(LAST, {"at": {"epoch": 3}, "freeze_modules": ["head"]}, model=model).place_phases(2)
    plan.apply(model)
    model.layers[2].extra = nn.Linear(2, 2)
    model.head = nn.Sequential(model.head)
    bound = plan.bind(model, step="surgery")
    assert [phase.step for phase in bound.phases] == [2, 6]
    assert bound.phase == 0
    assert not model.layers[2].extra.weight.requires_grad
    assert {"layers.2.extra.weight", "layers.2.extra.bias"} < set(bound.phases[0].thaws)
    assert bound.phases[1].freezes == ("head.0.weight", "head.0.bias")
    later = plan.in_phase(1).bind(model, step="surgery")
    assert later.phase == 1
    assert later.digest == bound.digest
    assert model.layers[2].extra.weight.requires_grad
    later.verify(model)
