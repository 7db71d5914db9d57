from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from frostline.adapters import LoRA, adapters_of, find_targets, inject, merge
from frostline.config.origin import Origins
from frostline.errors import AdapterError, SelectorError
from frostline.preparation import prepare, resolve
from frostline.tree import ModuleTree


def paths(model: nn.Module, targets: Any = "all-linear", **method: Any) -> list[str]:
    found = find_targets(ModuleTree.from_model(model), LoRA(target_modules=targets, **method))
    return [target.path for target in found.targets]


def notes(model: nn.Module, targets: Any = "all-linear", **method: Any) -> str:
    return "\n".join(find_targets(ModuleTree.from_model(model), LoRA(target_modules=targets, **method)).notes)


ALL = ["layers.0.q_proj", "layers.0.v_proj", "layers.1.q_proj", "layers.1.v_proj"]


def test_case_90_all_linear_leaves_out_the_output_head_and_says_so(net: Any) -> None:
    assert paths(net) == ALL
    assert "the output head (name it in target_modules instead of all-linear to adapt it): 1 module (lm_head)" in notes(
        net
    )
    assert paths(net, ["lm_head"]) == ["lm_head"]


def test_the_head_of_a_model_inside_another_is_found(net: Any) -> None:
    outer = nn.ModuleDict({"model": net, "extra": nn.Linear(2, 2)})
    assert paths(outer) == [*(f"model.{path}" for path in ALL), "extra"]


def test_case_59_a_head_that_trains_in_full_is_not_adapted(net: Any) -> None:
    net.classifier = nn.Linear(6, 3)
    new = ["classifier.weight", "classifier.bias"]
    model, plan = prepare(net, peft=LoRA(), new=new)
    assert [path for path in plan.trainable if "classifier" in path] == new
    assert "classifier" not in adapters_of(model)["default"].targets
    assert any("trained in full: 1 module (classifier)" in note for note in plan.notes)


def test_a_module_of_which_only_the_bias_trains_is_adapted(net: Any) -> None:
    model, plan = prepare(net, peft=LoRA(), freeze_config={"unfreeze_modules": [{"param": "*.q_proj.bias"}]})
    assert adapters_of(model)["default"].targets == tuple(ALL)
    assert plan.decisions["layers.0.q_proj.bias"].trains


@pytest.mark.parametrize("frozen", [["classifier"], [{"param": "classifier.*"}]])
def test_a_new_head_that_stays_frozen_is_not_said_to_train(net: Any, frozen: Any) -> None:
    net.classifier = nn.Linear(6, 3)
    config = {"freeze_modules": frozen, "allow_frozen_new": True}
    model, plan = prepare(net, peft=LoRA(), freeze_config=config, new=["classifier.weight", "classifier.bias"])
    assert "classifier" not in adapters_of(model)["default"].targets
    assert not any("trained in full" in note for note in plan.notes)
    assert "not adapted, inside freeze_modules: 1 module (classifier)" in plan.notes


@pytest.mark.parametrize(
    "parametrize",
    [
        nn.utils.parametrizations.weight_norm,
        nn.utils.parametrizations.spectral_norm,
        nn.utils.parametrizations.orthogonal,
        nn.utils.spectral_norm,
    ],
)
def test_a_weight_that_is_computed_counts_as_trained_where_its_parameters_are(net: Any, parametrize: Any) -> None:
    parametrize(net.layers[0].q_proj)
    model, plan = prepare(net, peft=LoRA(), freeze_config={"unfreeze_modules": [{"path": "layers.0.q_proj"}]})
    assert adapters_of(model)["default"].targets == tuple(ALL[1:])
    assert "not adapted, trained in full: 1 module (layers.0.q_proj)" in plan.notes


def test_a_shared_module_with_a_computed_weight_is_not_tied_to_itself(net: Any) -> None:
    nn.utils.parametrizations.weight_norm(net.layers[0].q_proj)
    net.again = net.layers[0].q_proj
    assert paths(net) == ALL


def test_what_freeze_modules_names_is_left_exactly_as_it_is(net: Any) -> None:
    model, plan = prepare(net, peft=LoRA(), freeze_config={"freeze_modules": [{"layers": 0}]})
    assert adapters_of(model)["default"].targets == tuple(ALL[2:])
    assert any("inside freeze_modules: 2 modules (layers.0.q_proj, layers.0.v_proj)" in note for note in plan.notes)


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "v_proj"], ["layers"], [{"type": "Linear"}]])
def test_case_60_an_exclude_always_wins(net: Any, targets: Any) -> None:
    excluded = [{"path": "lm_head", "optional": True}, {"layers": 0}]
    assert paths(net, targets, exclude_modules=excluded) == ALL[2:]
    assert "exclude_modules: " in notes(net, targets, exclude_modules=excluded)


def test_a_target_that_is_excluded_altogether_is_a_contradiction(net: Any) -> None:
    with pytest.raises(AdapterError, match=r'"lm_head" is left with no module to adapt(.|\n)*exclude_modules: lm_head'):
        paths(net, ["q_proj", "lm_head"], exclude_modules=["lm_head"])


def test_an_exclude_that_excludes_nothing_is_an_error(net: Any) -> None:
    with pytest.raises(SelectorError, match="lm_haed") as caught:
        paths(net, exclude_modules=["lm_haed"])
    assert "lm_head" in str(caught.value)


@pytest.mark.parametrize(
    ("targets", "excluded", "matched"),
    [
        (["q_proj"], ["v_proj"], r"2 modules \(layers\.0\.v_proj, layers\.1\.v_proj\)"),
        ("all-linear", ["norm"], r"2 modules \(layers\.0\.norm, layers\.1\.norm\)"),
        ("all-linear", ["lm_head", {"param": "*.q_proj.bias"}], "2 modules"),
        ([{"layers": 1}], [{"layers": 0}], r"layers\.0"),
    ],
)
def test_an_exclude_that_takes_no_target_away_is_an_error(net: Any, targets: Any, excluded: Any, matched: str) -> None:
    with pytest.raises(AdapterError, match=rf"takes nothing away(.|\n)*it matches {matched}") as caught:
        paths(net, targets, exclude_modules=excluded)
    (problem,) = caught.value.problems
    assert problem.where == f"peft.exclude_modules[{len(excluded) - 1}]"
    assert paths(net, targets, exclude_modules=[{"type": "LayerNorm", "optional": True}]) == paths(net, targets)


def test_the_output_head_may_be_excluded_although_all_linear_leaves_it_out(net: Any) -> None:
    assert paths(net, exclude_modules=["lm_head"]) == ALL
    assert "exclude_modules: 1 module (lm_head)" in notes(net, exclude_modules=["lm_head"])


@pytest.mark.parametrize("excluded", [{"type": "Linear"}, ["layers"]])
def test_nothing_left_is_an_error_with_the_reason(net: Any, excluded: Any) -> None:
    with pytest.raises(AdapterError, match=r"left with no module to adapt(.|\n)*exclude_modules: [45] modules"):
        paths(net, exclude_modules=excluded)


def test_case_70_every_target_is_adapted_or_refused_by_name(net: Any) -> None:
    with pytest.raises(AdapterError, match=r"\"embed\" selects embed of class Embedding, which LoRA r8 cannot adapt"):
        paths(net, ["q_proj", "embed", "lm_head"])
    assert paths(net, ["q_proj", "lm_head"]) == [ALL[0], ALL[2], "lm_head"]


@pytest.mark.parametrize("name", ["q_porj", {"path": "layers.7.q_proj"}])
def test_case_55_a_misspelt_target_is_an_error_for_the_second_adapter_too(net: Any, name: Any) -> None:
    method = LoRA(target_modules=[name])
    with pytest.raises(SelectorError, match=r"q_p"):
        inject(net, method, adapter="a")
    inject(net, LoRA(), adapter="a")
    with pytest.raises(SelectorError, match=r"q_p"):
        inject(net, method, adapter="b")
    assert list(adapters_of(net)) == ["a"]


def test_a_target_of_another_architecture_is_told_the_layers_that_are_here(net: Any) -> None:
    net.pooler = nn.Sequential(nn.Linear(6, 6))
    with pytest.raises(SelectorError) as caught:
        paths(net, ["query", "embedd", "q_porj"])
    query, embed, misspelt = caught.value.problems
    layers = "layers that LoRA r8 adapts here: q_proj (2), v_proj (2), lm_head (1), pooler.0 (1)"
    assert query.possible == f"{layers}; or all of them: `target_modules: all-linear`"
    assert embed.possible.startswith(f"nearest: embed\n{layers}")
    assert misspelt.possible == "nearest: q_proj, v_proj"


def test_all_faults_come_at_once_with_their_places(net: Any) -> None:
    net.attention = nn.MultiheadAttention(6, 2)
    origins = Origins(
        "run.yaml", {("peft", "target_modules", index): 10 + index for index in range(3)}, frozenset(), ("peft",)
    )
    method = LoRA(target_modules=["embed", "norm", "out_proj"])
    with pytest.raises(AdapterError) as caught:
        find_targets(ModuleTree.from_model(net), method, origins=origins)
    assert [problem.where for problem in caught.value.problems] == [
        f"run.yaml, line {10 + index}: peft.target_modules[{index}]" for index in range(3)
    ]


def test_a_container_means_the_linears_below_it(net: Any) -> None:
    assert paths(net, ["layers.1"]) == ALL[2:]
    assert paths(net, [{"type": "Block"}]) == ALL
    assert paths(net, [{"type": "Linear", "within": {"layers": 1}, "except": ["v_proj"]}]) == [ALL[2]]


def test_case_76_a_string_is_one_selector(net: Any) -> None:
    assert paths(net, "q_proj") == paths(net, ["q_proj"]) == paths(net, ("q_proj",)) == [ALL[0], ALL[2]]
    assert paths(net, "all-linear", exclude_modules="q_proj") == [ALL[1], ALL[3]]


def test_cases_48_to_51_layers_are_chosen_by_the_number_behind_their_list() -> None:
    experts = nn.ModuleList(nn.ModuleDict({"up_proj": nn.Linear(2, 2)}) for _ in range(3))
    layers = nn.ModuleList(
        nn.ModuleDict({"q_proj": nn.Linear(2, 2), "experts": copy.deepcopy(experts)}) for _ in range(2)
    )
    bare = nn.ModuleDict({"layers": layers, "lm_head": nn.Linear(2, 2)})
    for model, prefix in ((bare, ""), (nn.ModuleDict({"model": bare}), "model.")):
        for index in (0, 1):
            chosen = paths(model, [{"type": "Linear", "within": {"layers": index}}])
            below = f"{prefix}layers.{index}."
            assert chosen == [below + "q_proj", *(f"{below}experts.{expert}.up_proj" for expert in range(3))]
        assert paths(model, [{"layers": 1}, "lm_head"])[-1] == f"{prefix}lm_head"


def test_cases_74_and_77_parameters_are_no_targets(net: Any) -> None:
    net.bank = nn.Parameter(torch.zeros(2, 6, 6))
    with pytest.raises(AdapterError, match="selects parameters, but LoRA r8 adapts modules"):
        paths(net, [{"param": "bank"}])
    with pytest.raises(SelectorError, match="bank"):
        paths(net, ["bank"])


def test_the_root_cannot_be_adapted() -> None:
    with pytest.raises(AdapterError, match="the root of the model cannot be adapted in place of itself: the root\n"):
        paths(nn.Linear(2, 2))
    with pytest.raises(AdapterError, match="the root"):
        paths(nn.Linear(2, 2), [{"type": "Linear"}])


class TestWeightsThatAreReadDirectly:
    def model(self) -> nn.Module:
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        return nn.ModuleDict({"encoder": nn.TransformerEncoder(layer, 1), "head": nn.Linear(8, 2)})

    @pytest.mark.parametrize("name", ["linear1", "linear2", "out_proj"])
    def test_named_they_are_refused(self, name: str) -> None:
        with pytest.raises(AdapterError, match=rf"{name} cannot be adapted(.|\n)*reads its weight directly"):
            paths(self.model(), [name])

    def test_all_linear_notes_them(self) -> None:
        assert paths(self.model()) == ["head"]
        assert "TransformerEncoderLayer reads its weight directly" in notes(self.model())
        assert "MultiheadAttention reads its weight directly" in notes(self.model())

    def test_the_table_is_right_about_torch(self) -> None:
        """An adapter there would be dead: the output does not change with the child's forward."""
        model = self.model().eval()
        x = torch.randn(2, 3, 8)
        with torch.no_grad():
            before = model["encoder"](x)  # pyright: ignore[reportIndexIssue]
            for name, module in model.named_modules():
                if name.endswith(("linear1", "linear2", "out_proj")):
                    module.forward = lambda x: x * 0
            assert torch.equal(model["encoder"](x), before)  # pyright: ignore[reportIndexIssue]


class TestTies:
    def test_a_tied_target_is_refused_by_name(self, net: Any) -> None:
        net.lm_head.weight = net.embed.weight
        with pytest.raises(AdapterError, match=r"lm_head cannot be adapted(.|\n)*its weight is also embed.weight"):
            paths(net, ["lm_head"])

    def test_all_linear_notes_it(self, net: Any) -> None:
        net.layers[1].q_proj.weight = net.layers[0].q_proj.weight
        assert paths(net) == [ALL[1], ALL[3]]
        assert "its weight is also layers.1.q_proj.weight" in notes(net)

    def test_a_tied_bias_is_no_hindrance(self, net: Any) -> None:
        net.layers[1].q_proj.bias = net.layers[0].q_proj.bias
        assert paths(net) == ALL

    def test_case_68_identity_decides_not_the_class(self, net: Any) -> None:
        net._tied_weights_keys = ["lm_head.weight"]
        assert paths(net, ["lm_head"]) == ["lm_head"]


class TestSharedModules:
    @pytest.fixture
    def shared(self, net: Any) -> Any:
        net.layers.append(net.layers[0])  # one block used twice, as in ALBERT
        return net

    def test_they_are_adapted_once_under_their_first_path(self, shared: Any) -> None:
        assert paths(shared) == ALL
        assert "adapted once: layers.0.q_proj = layers.2.q_proj" in notes(shared)

    @pytest.mark.parametrize("targets", ["all-linear", [{"layers": 2}], [{"path": "layers.2.q_proj"}]])
    def test_the_plan_holds_before_and_after(self, shared: Any, targets: Any, tokens: torch.Tensor) -> None:
        method = LoRA(rank=2, target_modules=targets)
        model, plan = prepare(shared, peft=method)
        plan.verify(model)
        assert model.layers[2].q_proj is model.layers[0].q_proj
        assert "layers.0.q_proj.lora_A.default.weight" in plan.trainable
        assert prepare(model, peft=method)[1].digest == plan.digest
        model(tokens).sum().backward()
        assert model.layers[0].q_proj.lora_B["default"].weight.grad.abs().sum() > 0

    def test_an_exclude_or_freeze_of_one_path_counts_for_all(self, shared: Any) -> None:
        assert paths(shared, exclude_modules=["layers.2"]) == ALL[2:]
        model, _ = prepare(shared, peft=LoRA(), freeze_config={"freeze_modules": ["layers.2"]})
        assert adapters_of(model)["default"].targets == tuple(ALL[2:])
        with pytest.raises(AdapterError, match=r"exclude_modules: layers\.0\.q_proj"):
            paths(shared, [{"path": "layers.2.q_proj"}], exclude_modules=["layers.0"])

    def test_merging_adds_it_once(self, shared: Any, scattered: Callable[..., None], tokens: torch.Tensor) -> None:
        model, _ = prepare(shared, peft=LoRA(rank=2))
        scattered(model)
        before = model(tokens)
        torch.testing.assert_close(merge(model)(tokens), before, rtol=1e-5, atol=1e-6)


class FusedExperts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.zeros(3, 8, 6))
        self.down_proj = nn.Parameter(torch.zeros(3, 6, 4))
        self.down_proj_bias = nn.Parameter(torch.zeros(3, 6))


def test_row_73_fused_experts_that_get_no_adapter_are_counted(net: Any) -> None:
    """Row 73: some expert layouts receive no adapters while the log says that expert LoRA is on."""
    for layer in net.layers:
        layer.experts = FusedExperts()
    told = (
        "not adapted, fused experts, which are parameters and no layers: gate_up_proj (2 parameters of 288 elements), "
        "down_proj (2 parameters of 144 elements); "
        'unfreeze_modules [{param: "*.gate_up_proj"}, {param: "*.down_proj"}] trains them in full'
    )
    assert told in notes(net)
    assert "fused" not in notes(net, exclude_modules={"glob": "*.experts", "optional": True})
    assert "fused" not in notes(net, "q_proj")
    plan = resolve(
        net,
        peft=LoRA(),
        freeze_config={"unfreeze_modules": [{"param": "*.gate_up_proj"}, {"param": "*.down_proj"}]},
    )
    assert not any("fused" in note for note in plan.notes)
    assert "layers.0.experts.gate_up_proj" in plan.trainable


def test_row_73_experts_that_are_layers_are_adapted_without_a_note(net: Any) -> None:
    """Row 73: experts that are layers each get an adapter."""
    net.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
    assert "experts.1" in paths(net)
    assert "fused" not in notes(net)


def test_packed_linears_are_no_targets(net: Any) -> None:
    net.packed = nn.Linear(2, 2)
    net.packed.weight = nn.Parameter(torch.zeros(2, 2, dtype=torch.int8), requires_grad=False)
    assert paths(net) == ALL
    with pytest.raises(AdapterError, match="class Linear, which LoRA r8 cannot adapt"):
        paths(net, ["packed"])


def test_a_forward_replaced_on_the_instance_would_bypass_the_adapter(net: Any) -> None:
    linear = net.layers[0].q_proj
    linear.forward = type(linear).forward.__get__(linear)
    assert paths(net) == ALL[1:]
    assert "its forward is replaced on the instance" in notes(net)
    with pytest.raises(AdapterError, match=re.escape("layers.0.q_proj cannot be adapted")):
        paths(net, ["q_proj"])


def test_an_optional_target_may_match_nothing(net: Any) -> None:
    assert paths(net, ["q_proj", {"glob": "*.k_proj", "optional": True}]) == [ALL[0], ALL[2]]


class OwnModule(nn.Linear):
    def __init__(self) -> None:
        super().__init__(6, 6)
        self.lora_A = nn.Linear(6, 2)


class OwnParameter(nn.Linear):
    """As in loralib."""

    def __init__(self) -> None:
        super().__init__(6, 6)
        self.lora_B = nn.Parameter(torch.zeros(6, 2))


class OwnMethod(nn.Linear):
    def lora_A(self) -> None: ...


@pytest.mark.parametrize("build", [OwnModule, OwnParameter, lambda: OwnMethod(6, 6)])
def test_names_that_the_adapter_needs_must_be_free(net: Any, build: Callable[[], nn.Module]) -> None:
    net.own = build()
    state = set(net.state_dict())
    with pytest.raises(AdapterError, match=r"own cannot be adapted(.|\n)*it has lora_[AB] of its own(.|\n)*exclude"):
        prepare(net, peft=LoRA(target_modules=["q_proj", "own"]))
    assert set(net.state_dict()) == state
    assert paths(net, "all-linear") == ([*ALL, "own.lora_A"] if isinstance(net.own, OwnModule) else ALL)
    assert "it has lora_" in notes(net)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("shape", [(0, 6), (6, 0)])
def test_a_layer_without_elements_is_named(net: Any, shape: tuple[int, int]) -> None:
    net.empty = nn.Linear(*shape)
    with pytest.raises(AdapterError, match=r"empty cannot be adapted(.|\n)*its weight has no elements(.|\n)*exclude"):
        prepare(net, peft=LoRA(target_modules=["empty"]))
    assert "its weight has no elements, so that there is nothing to adapt: 1 module (empty)" in notes(net)


def test_a_rank_above_the_smaller_side_is_noted(net: Any) -> None:
    assert "exceeds" not in notes(net, rank=6)
    assert "rank 7 exceeds the smaller side (6), which is the highest rank of an update there: 4 modules" in notes(
        net, rank=7
    )
