"""Which parameter trains and which rule decided it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from frostline import LoRA, prepare, resolve
from frostline.config import load_yaml
from frostline.errors import ConfigError, SelectorError
from frostline.trainability import TrainabilityPlan, parse_freeze_config, resolve_plan
from frostline.tree import ModuleTree

from .conftest import encoder, rules_of


class Tied(nn.Module):
    """Embedding and head share one tensor, as real identity and not as a config says."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.body = nn.Linear(4, 4)
        self.lm_head = nn.Linear(4, 5, bias=False)
        self.lm_head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.body(self.embed(ids)))


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.zeros(3, dtype=torch.uint8), requires_grad=False)
        self.scale = nn.Parameter(torch.ones(3))


def plan_for(model: nn.Module, freeze: Any = None, unfreeze: Any = None, **more: Any) -> TrainabilityPlan:
    config: dict[str, Any] = {}
    if freeze is not None:
        config["freeze_modules"] = freeze
    if unfreeze is not None:
        config["unfreeze_modules"] = unfreeze
    for key in ("frozen_mode", "allow_frozen_new"):
        if key in more:
            config[key] = more.pop(key)
    return resolve(model, freeze_config=config, **more)


# -- baseline


def test_without_rules_everything_stays_as_the_model_built_it() -> None:
    model = encoder()
    model.embed.bias.requires_grad_(False)
    plan = resolve(model)
    assert plan.frozen == ("embed.bias",)
    assert plan.decisions["embed.bias"].rule.text == "baseline: the model built it frozen"
    assert plan.decisions["head.bias"].rule.text == "baseline: trains as built"
    assert plan.num_total == sum(param.numel() for param in model.parameters())
    assert plan.num_trainable == plan.num_total - 4
    assert not plan.peft


def test_unfreeze_wins_and_the_last_matching_entry_of_the_winning_list_is_the_rule() -> None:
    plan = plan_for(encoder(), ["layers", {"param": "*.bias"}, {"layers": 0}], [{"layers": -1}, {"type": "Linear"}])
    assert rules_of(plan, ["layers.0.linear.weight", "layers.0.norm.bias", "layers.2.norm.weight", "head.bias"]) == {
        "layers.0.linear.weight": "unfreeze_modules type Linear",
        "layers.0.norm.bias": "freeze_modules layers 0",
        "layers.2.norm.weight": "unfreeze_modules layers -1",
        "head.bias": "unfreeze_modules type Linear",
    }
    assert plan.frozen == tuple(f"layers.{n}.norm.{part}" for n in (0, 1) for part in ("weight", "bias"))


def test_a_parameter_that_the_model_built_frozen_is_thawed_with_a_note() -> None:
    model = encoder()
    model.embed.weight.requires_grad_(False)
    plan = plan_for(model, unfreeze=["embed"])
    assert "embed.weight" in plan.trainable
    assert plan.decisions["embed.weight"].note == "the model built it frozen"
    assert plan.decisions["embed.bias"].note == ""
    assert plan.notes == ("thawed although the model built it frozen: embed.weight",)
    model.head.weight.requires_grad_(False)
    assert "head.weight" in plan_for(model, unfreeze=["embed"]).frozen  # what no selector reaches stays


def test_the_plan_is_a_plan_for_any_module_even_one_linear() -> None:
    assert plan_for(nn.Linear(2, 2), {"param": "bias"}).trainable == ("weight",)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_resolving_touches_nothing(device: str) -> None:
    with torch.device(device):
        model = encoder()
    flags = [param.requires_grad for param in model.parameters()]
    plan_for(model, "layers", peft=LoRA(target_modules="head"))
    assert [param.requires_grad for param in model.parameters()] == flags
    assert "_frostline_plan" not in model.__dict__
    assert not hasattr(model.head, "lora_A")


# -- refusals


def test_case_02_case_03_a_config_under_which_nothing_trains_is_refused_with_counts() -> None:
    with pytest.raises(ConfigError, match=r"nothing trains: all 16 parameters are frozen[\s\S]*16 by .*\"\*\""):
        plan_for(encoder(), "*")


def test_all_dead_selectors_of_both_lists_and_of_peft_come_at_once(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "freeze_config:\n  freeze_modules: [hed]\n  unfreeze_modules:\n    - {path: laiers}\n"
        "peft:\n  target_modules:\n    - linaer\n",
        encoding="utf-8",
    )
    document = load_yaml(path)
    with pytest.raises(SelectorError, match="3 problems") as caught:
        resolve(encoder(), freeze_config=document.data["freeze_config"], peft=document.data["peft"],
                origins=document.origins)  # fmt: skip
    found = [(problem.what, str(problem.where).partition("line ")[2]) for problem in caught.value.problems]
    assert found == [
        ('selector "hed" matched 0 modules', "2: freeze_config.freeze_modules[0]"),
        ('selector path "laiers" matched 0 modules', "4: freeze_config.unfreeze_modules[0]"),
        ('selector "linaer" matched 0 modules', "7: peft.target_modules[0]"),
    ]


def test_malformed_blocks_of_both_come_at_once() -> None:
    with pytest.raises(ConfigError, match="2 problems") as caught:
        resolve(encoder(), freeze_config={"freeze_modules": None}, peft={"rank": 0})
    assert [problem.what for problem in caught.value.problems] == ["null is not a selector", "rank is 0"]


def test_integer_parameters_cannot_train() -> None:
    assert resolve(Packed()).trainable == ("scale",)
    with pytest.raises(ConfigError, match=r"codes is to train, but its dtype is uint8"):
        plan_for(Packed(), unfreeze="*")
    plan = plan_for(Packed(), unfreeze={"glob": "*", "except": [{"param": "codes"}]})
    assert plan.trainable == ("scale",)


# -- new parameters


def test_new_parameters_train_also_with_peft_and_say_so() -> None:
    new = ["head.weight", "head.bias"]
    for peft in (None, LoRA(target_modules="linear")):
        plan = resolve(encoder(), peft=peft, new=new)
        assert all(plan.decisions[path].trains and plan.decisions[path].kind == "new" for path in new)
        assert plan.decisions["head.bias"].rule.text == "new parameters train"
        assert set(new) <= set(plan.kept)


def test_freezing_a_new_parameter_is_an_error_unless_it_is_meant() -> None:
    model = encoder()
    with pytest.raises(ConfigError, match=r"head\.weight, head\.bias are new .* random for ever"):
        plan_for(model, "head", new=["head.weight", "head.bias"])
    with pytest.raises(ConfigError, match=r"head\.bias is new"):
        plan_for(model, {"param": "*.bias"}, new=["head.weight", "head.bias"])
    plan = plan_for(model, "head", new=["head.weight", "head.bias"], allow_frozen_new=True)
    assert "head.weight" in plan.frozen
    assert "head.weight" in plan.kept
    assert "embed.weight" in plan.kept
    assert plan.notes == ("new but frozen (allow_frozen_new), kept in every checkpoint: head.weight, head.bias",)


def test_a_new_path_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"haed\.weight in `new`, but the model has no such parameter"):
        resolve(encoder(), new=["haed.weight"])


# -- ties


def test_case_47_rules_that_disagree_about_a_tied_tensor_are_refused_with_both_names() -> None:
    with pytest.raises(
        SelectorError, match=r"one tensor is both frozen and trained under its names embed\.weight, lm_h"
    ) as caught:
        plan_for(Tied(), "*", "lm_head")
    assert 'embed.weight: freeze_modules "*"' in str(caught.value)
    assert 'lm_head.weight: unfreeze_modules "lm_head"' in str(caught.value)


@pytest.mark.parametrize("name", ["embed", "lm_head"])
def test_case_67_one_name_decides_for_the_tensor_and_it_counts_once(name: str) -> None:
    plan = plan_for(Tied(), name)
    assert plan.frozen == ("embed.weight",)
    assert plan.decisions["lm_head.weight"] is plan.decisions["embed.weight"]
    assert plan.decisions["embed.weight"].aliases == ("lm_head.weight",)
    assert plan.num_total == 5 * 4 + 4 * 4 + 4
    assert any("one tensor, frozen: embed.weight = lm_head.weight" in note for note in plan.notes)
    both = plan_for(Tied(), "*", ["embed", "lm_head"])
    assert both.trainable == ("embed.weight",)


@pytest.mark.parametrize("names", [["embed", "lm_head"], ["lm_head", "embed"]])
def test_of_the_names_of_a_tensor_the_last_entry_of_the_list_is_the_rule(names: list[str]) -> None:
    plan = plan_for(Tied(), "*", names)
    assert plan.decisions["embed.weight"].rule.text == f'unfreeze_modules "{names[1]}"'


def test_case_68_real_identity_decides_not_metadata() -> None:
    model = Tied()
    model._tied_weights_keys = ["lm_head.weight"]  # type: ignore[assignment]
    model.lm_head.weight = nn.Parameter(model.embed.weight.detach().clone())
    plan = plan_for(model, "*", "lm_head")
    assert plan.trainable == ("lm_head.weight",)
    assert "embed.weight" in plan.frozen


def test_a_tied_name_that_the_base_files_do_hold_is_not_new() -> None:
    plan = resolve(Tied(), peft=LoRA(target_modules="body"), new=["lm_head.weight"])
    assert plan.decisions["lm_head.weight"].kind == "base"
    assert "embed.weight" in plan.frozen
    whole = resolve(Tied(), peft=LoRA(target_modules="body"), new=["lm_head.weight", "embed.weight"])
    assert whole.decisions["embed.weight"].kind == "new"
    assert "embed.weight" in whole.trainable


def test_a_shared_module_is_decided_under_all_its_paths() -> None:
    shared = nn.Linear(2, 2)
    model = nn.ModuleDict({"a": nn.Sequential(shared), "b": nn.Sequential(shared, nn.Linear(2, 2))})
    plan = plan_for(model, "a")
    assert plan.frozen == ("a.0.weight", "a.0.bias")
    assert plan.trainable == ("b.1.weight", "b.1.bias")
    assert plan.frozen_roots == ("a", "b.0")
    with pytest.raises(SelectorError, match="one tensor is both frozen and trained"):
        plan_for(model, "a", "b")


# -- adapters


def test_case_22_with_peft_only_adapters_train() -> None:
    plan = resolve(encoder(), peft=LoRA(rank=2, target_modules=["linear"]))
    assert all(".lora_" in path for path in plan.trainable)
    assert len(plan.trainable) == 6
    assert set(rules_of(plan, plan.frozen).values()) == {"baseline: PEFT freezes the base"}


def test_case_92_adapter_tensors_are_ordinary_parameters_for_selectors() -> None:
    model = encoder()
    plan = plan_for(model, {"param": "*.lora_A.*"}, peft=LoRA(target_modules="linear"))
    assert all(".lora_B." in path for path in plan.trainable)
    assert len(plan.trainable) == 3
    whole = plan_for(model, {"param": "*.lora_*"}, "head", peft=LoRA(target_modules="linear"))
    assert whole.trainable == ("head.weight", "head.bias")


def test_case_59_case_60_frozen_thawed_and_excluded_modules_get_no_adapter_and_say_why() -> None:
    plan = plan_for(
        encoder(), [{"layers": 0}], ["head"], peft=LoRA(target_modules="all-linear", exclude_modules=["embed"])
    )
    adapted = {path.partition(".lora_")[0] for path in plan.trainable if ".lora_" in path}
    assert adapted == {"layers.1.linear", "layers.2.linear"}
    assert {"head.weight", "head.bias"} <= set(plan.trainable)
    notes = "\n".join(plan.notes)
    for reason, path in (("exclude_modules", "embed"), ("freeze_modules", "layers.0.linear"), ("in full", "head")):
        assert any(reason in note and path in note for note in plan.notes), notes


def test_thawing_only_a_bias_leaves_the_adapter() -> None:
    plan = plan_for(encoder(), unfreeze={"param": "*.linear.bias"}, peft=LoRA(target_modules="linear"))
    assert {"layers.0.linear.bias", "layers.0.linear.lora_A.default.weight"} <= set(plan.trainable)


@pytest.mark.parametrize("freeze", [None, [{"layers": 0}], [{"param": "*.lora_B.*"}]])
def test_bare_with_peft_injected_and_meta_have_one_digest(freeze: Any) -> None:
    config = {"freeze_modules": freeze} if freeze else None
    method = LoRA(rank=2, target_modules=["linear", "head"])
    bare = resolve(encoder(), freeze_config=config, peft=method)
    with torch.device("meta"):
        meta = resolve(encoder(), freeze_config=config, peft=method)
    model, prepared = prepare(encoder(), freeze_config=config, peft=method)
    injected = resolve(model, freeze_config=config, peft=method)
    assert bare == meta == prepared == injected
    assert len(bare.digest) == 64
    assert bare.diff(injected) == []
    assert bare.frozen_roots == injected.frozen_roots
    assert bare.render() == injected.render()


# -- properties

RULES = st.sampled_from(
    ["embed", "head", "layers", "*", {"layers": 0}, {"layers": "-2:"}, {"type": "Linear"}, {"param": "*.bias"},
     {"type": "BatchNorm1d", "except": [{"layers": 1}]}]
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(RULES, max_size=4), st.lists(RULES, max_size=4))
def test_the_trainable_set_is_built_minus_frozen_plus_thawed(freeze: list[Any], unfreeze: list[Any]) -> None:
    model = encoder()
    model.embed.bias.requires_grad_(False)
    tree = ModuleTree.from_model(model)
    rules = parse_freeze_config({"freeze_modules": freeze, "unfreeze_modules": unfreeze})
    expected: set[str] = set()
    for index, ref in enumerate(tree.params):
        trains = ref.requires_grad
        if any(selector.select(tree).params[index] for selector in rules.freeze):
            trains = False
        if any(selector.select(tree).params[index] for selector in rules.unfreeze):
            trains = True
        if trains:
            expected.add(ref.path)
    if not expected:
        with pytest.raises(ConfigError, match="nothing trains"):
            resolve_plan(tree, rules)
        return
    plan = resolve_plan(tree, rules)
    assert set(plan.trainable) == expected
    # The order of entries and of keys chooses the rule that is shown, never the outcome.
    turned = parse_freeze_config({"unfreeze_modules": unfreeze[::-1], "freeze_modules": freeze[::-1]})
    assert resolve_plan(tree, turned) == plan


def test_the_digest_depends_on_paths_shapes_and_decisions_only() -> None:
    plain = plan_for(encoder(), "head")
    assert plain.digest == plan_for(encoder(), [{"path": "head", "optional": True}], frozen_mode="train").digest
    assert plain.digest == plan_for(encoder().to(torch.bfloat16), "head").digest
    assert plain.digest != plan_for(encoder(), "embed").digest
    other = encoder()
    other.head = nn.Linear(4, 2)
    assert plain.digest != plan_for(other, "head").digest


def test_optional_selectors_that_match_nothing_are_noted() -> None:
    plan = plan_for(encoder(), ["head", {"path": "vision", "optional": True}])
    assert any('optional selector path "vision"' in note and "matches nothing" in note for note in plan.notes)


def test_a_large_mixture_of_experts_resolves() -> None:
    values = torch.empty(1, 1, device="meta")

    class Light(nn.Module):  # building 46,000 real linears takes ten times as long as the test
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(values)

    def expert() -> nn.Module:
        return nn.ModuleDict({name: Light() for name in ("up_proj", "gate_proj", "down_proj")})

    with torch.device("meta"):
        model = nn.ModuleDict(
            {
                "layers": nn.ModuleList(
                    nn.ModuleDict({"experts": nn.ModuleList(expert() for _ in range(64))}) for _ in range(60)
                ),
                "head": nn.Linear(1, 1),
            }
        )
    rules = parse_freeze_config({"freeze_modules": ["*"], "unfreeze_modules": [{"layers": "-2:"}]})
    plan = resolve_plan(ModuleTree.from_model(model), rules)
    assert len(plan.trainable) == 2 * 64 * 3
    assert len(plan.frozen) == 58 * 64 * 3 + 2


# -- entries that thaw nothing


def idle_notes(plan: TrainabilityPlan) -> list[str]:
    return [note for note in plan.notes if "nothing: all of" in note]


def test_thawing_what_trains_anyway_is_said() -> None:
    config = {"unfreeze_modules": [{"layers": "-2:"}]}
    plan = resolve(encoder(), freeze_config=config)
    assert not plan.frozen
    (note,) = idle_notes(plan)
    assert note.startswith('unfreeze_modules layers "-2:" (')
    assert note.endswith('thaws nothing: all of it trains anyway; to train nothing else, add freeze_modules: ["*"]')
    followed = resolve(encoder(), freeze_config={**config, "freeze_modules": ["*"]})
    assert not idle_notes(followed)
    assert {path.rpartition(".")[0] for path in followed.trainable} == {
        f"layers.{index}.{name}" for index in (1, 2) for name in ("linear", "norm")
    }


def test_the_advice_to_freeze_all_reaches_parameters_of_the_root() -> None:
    model = encoder()
    model.register_parameter("scale", nn.Parameter(torch.ones(1)))
    (note,) = idle_notes(plan_for(model, unfreeze=["head"]))
    assert note.endswith('add freeze_modules: ["*"]')
    assert plan_for(model, freeze=["*"], unfreeze=["head"]).trainable == ("head.weight", "head.bias")


def test_all_entries_that_thaw_nothing_share_one_note() -> None:
    plan = plan_for(encoder(), freeze=["embed"], unfreeze=["head", {"layers": "0"}, "embed"])
    (note,) = idle_notes(plan)
    assert '"head" (' in note
    assert "layers 0 (" in note
    assert '"embed" (' not in note
    assert note.endswith('thaw nothing: all of them train anyway; to train nothing else, add "*" to freeze_modules')


@pytest.mark.parametrize(
    ("freeze", "unfreeze", "more"),
    [
        (["head"], [{"param": "*.weight"}], {}),  # some of it was frozen
        ([], [{"path": "head", "conditional": True}], {}),  # the tag is an effect
        ([], [{"path": "gone", "optional": True}], {}),
        ([], ["head"], {"peft": LoRA(rank=2, target_modules=["embed"])}),  # the base is frozen there
    ],
)
def test_entries_with_an_effect_get_no_note(freeze: Any, unfreeze: Any, more: dict[str, Any]) -> None:
    config = {"freeze_modules": freeze, "unfreeze_modules": unfreeze}
    assert not idle_notes(resolve(encoder(), freeze_config=config, **more))


def test_thawing_what_the_model_built_frozen_gets_no_note() -> None:
    model = encoder()
    model.head.requires_grad_(False)
    assert not idle_notes(plan_for(model, unfreeze=["head"]))
