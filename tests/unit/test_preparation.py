"""`resolve` and `prepare`: refused before anything changes, the same twice, and undone by `release`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from frostline import LoRA, plan_of, prepare, resolve
from frostline.adapters import adapters_of, disabled
from frostline.errors import AdapterError, ConfigError, FrostlineError, ModelError, PlanMismatchError, SelectorError
from frostline.preparation import merge, release


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleDict({"query": nn.Linear(4, 4), "norm": nn.LayerNorm(4)}) for _ in "ab")
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer["norm"](layer["query"](x))
        return self.head(x)


def flags(model: nn.Module) -> dict[str, bool]:
    return {name: param.requires_grad for name, param in model.named_parameters()}


METHOD = LoRA(rank=2, target_modules=["query"])


@pytest.mark.parametrize(
    ("model", "what"),
    [(None, "of type NoneType"), ([nn.Linear(2, 2)], "of type list"), (nn.Linear, "the class Linear")],
)
def test_what_is_no_module_is_refused(model: Any, what: str) -> None:
    for look in (prepare, resolve):
        with pytest.raises(ModelError, match=rf"(?s)the model is {what}.*an instance of torch.nn.Module"):
            look(model)


def test_prepare_injects_applies_and_returns_the_same_model() -> None:
    model = Classifier()
    x = torch.randn(3, 4)
    before = model(x)
    same, plan = prepare(model, peft=METHOD, new=["head.weight", "head.bias"])
    assert same is model
    assert plan_of(model) is plan
    assert {name for name, trains in flags(model).items() if trains} == set(plan.trainable)
    assert len(plan.trainable) == 4 + 2
    assert torch.equal(model(x), before)
    plan.verify(model)


def test_a_peft_block_of_a_file_gives_the_plan_of_the_object() -> None:
    block = {"method": "lora", "rank": 2, "target_modules": ["query"]}
    assert resolve(Classifier(), peft=block) == resolve(Classifier(), peft=METHOD)
    assert prepare(Classifier(), peft=block)[1] == resolve(Classifier(), peft=METHOD)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"freeze_config": {"freeze_modules": ["nothing"]}}, 'selector "nothing" matched 0 modules'),
        ({"freeze_config": {"freeze_modules": ["*"]}, "new": ["head.bias"]}, r"head\.bias is new"),
        ({"freeze_config": {"freeze_modules": ["*"]}}, "nothing trains"),
        ({"peft": LoRA(target_modules=["norm"])}, "cannot adapt"),
        ({"peft": LoRA(target_modules=["quary"])}, r'selector "quary" matched 0 modules[\s\S]*nearest: query'),
        ({"peft": METHOD, "freeze_config": {"freeze_modules": ["layers"]}}, "left with no module to adapt"),
        ({"peft": METHOD, "adapter": "a.b"}, r"adapter name 'a\.b' is not valid"),
        ({"peft": {"method": "loar"}}, "peft.method is 'loar'"),
        ({"new": ["nothing.weight"]}, r"nothing\.weight in `new`"),
        ({"freeze_config": {"freeze_modules": ["query"]}, "peft": {"rank": 0}}, "rank is 0"),
    ],
)
def test_nothing_is_changed_when_it_is_refused(arguments: dict[str, Any], message: str) -> None:
    model = Classifier()
    names, before = list(model.state_dict()), flags(model)
    with pytest.raises(FrostlineError, match=message):
        prepare(model, **arguments)
    assert list(model.state_dict()) == names
    assert flags(model) == before
    assert type(model.layers[0]["query"]) is nn.Linear
    assert not adapters_of(model)
    assert "_frostline_plan" not in model.__dict__


def test_case_56_preparing_twice_changes_nothing_the_second_time() -> None:
    model, plan = prepare(Classifier(), peft=METHOD)
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    _, again = prepare(model, peft=METHOD)
    assert again == plan
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (LoRA(rank=4, target_modules=["query"]), "rank is 2, not 4"),
        (LoRA(rank=2, dropout=0.5, target_modules=["query"]), r"dropout is 0\.0, not 0\.5"),
        (LoRA(rank=2, target_modules=["query", "head"]), "2 modules are adapted, 3 are wanted"),
    ],
)
def test_case_56_another_method_on_an_adapted_model_is_refused(method: LoRA, message: str) -> None:
    model, _ = prepare(Classifier(), peft=METHOD)
    for act in (resolve, prepare):
        with pytest.raises(AdapterError, match=rf"already has adapters \(default\) [\s\S]*{message}"):
            act(model, peft=method)


def test_case_127_an_adapter_of_any_name() -> None:
    model, plan = prepare(Classifier(), peft=METHOD, adapter="x")
    assert any(".lora_A.x.weight" in path for path in plan.trainable)
    assert resolve(model, peft=METHOD) == plan
    assert prepare(model, peft=METHOD, adapter="x")[1] == plan
    with pytest.raises(AdapterError, match="none is named y"):
        prepare(model, peft=METHOD, adapter="y")


def test_another_freeze_config_starts_from_the_model_as_it_was_built() -> None:
    model = Classifier()
    model.head.bias.requires_grad_(False)
    prepare(model, freeze_config={"freeze_modules": ["layers"]})
    prepare(model, freeze_config={"freeze_modules": [{"param": "head.weight"}]})
    assert [name for name, trains in flags(model).items() if not trains] == ["head.weight", "head.bias"]


def test_case_33_release_gives_back_flags_and_forgets_the_plan() -> None:
    model = Classifier()
    model.head.bias.requires_grad_(False)
    before = flags(model)
    prepare(model, freeze_config={"freeze_modules": ["layers"], "unfreeze_modules": ["head"]})
    assert flags(model) != before
    release(model)
    assert flags(model) == before
    assert "_frostline_plan" not in model.__dict__


def test_case_24_active_and_trainable_are_separate_states() -> None:
    model, plan = prepare(Classifier(), peft=METHOD)
    before = flags(model)
    with disabled(model):
        assert flags(model) == before
        plan.verify(model)
    plan.verify(model)


def test_case_59_all_linear_leaves_the_new_head_to_full_training() -> None:
    _, plan = prepare(Classifier(), peft=LoRA(), new=["head.weight", "head.bias"])
    head = [path for path in plan.trainable if path.startswith("head")]
    assert head == ["head.weight", "head.bias"]
    assert any("trained in full" in note and "head" in note for note in plan.notes)


def shared() -> nn.Module:
    model = Classifier()
    model.layers[1]["query"] = model.layers[0]["query"]
    return model


def test_a_shared_linear_is_adapted_once_and_bare_and_injected_agree() -> None:
    bare = resolve(shared(), peft=METHOD)
    model, plan = prepare(shared(), peft=METHOD)
    assert plan.trainable == ("layers.0.query.lora_A.default.weight", "layers.0.query.lora_B.default.weight")
    assert bare == plan == resolve(model, peft=METHOD)
    assert bare.num_trainable == plan.num_trainable == sum(p.numel() for p in model.parameters() if p.requires_grad)
    plan.bind(model).verify(model)


def test_case_88_a_compiled_model_is_prepared_under_its_plain_names() -> None:
    model = Classifier()
    compiled = torch.compile(model, backend="eager")
    assert isinstance(compiled, nn.Module)
    same, plan = prepare(compiled, peft=METHOD)
    assert same is compiled
    assert plan == resolve(Classifier(), peft=METHOD)
    compiled(torch.randn(2, 4)).sum().backward()
    assert model.layers[0]["query"].lora_B["default"].weight.grad is not None


def test_errors_of_both_blocks_keep_their_class() -> None:
    with pytest.raises(SelectorError, match="2 problems"):
        resolve(Classifier(), freeze_config={"freeze_modules": ["x"]}, peft=LoRA(target_modules=["y"]))
    with pytest.raises(ConfigError, match="freeze_config is 3"):
        resolve(Classifier(), freeze_config=3)  # type: ignore[arg-type]


def test_merge_leaves_a_plain_model_without_a_plan():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    prepare(model, peft=LoRA(target_modules=["0"]))
    assert merge(model) is model
    assert type(model[0]) is nn.Linear
    with pytest.raises(PlanMismatchError, match="has no plan"):
        plan_of(model)


def test_preparing_an_adapted_model_without_peft_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    prepare(model, peft=LoRA(target_modules=["0"]))
    with pytest.raises(AdapterError, match=r"has adapters \(default\), but no `peft` is given"):
        prepare(model, freeze_config={"freeze_modules": ["1"]})
    assert not model[0].weight.requires_grad


def test_an_alpha_left_out_is_compared_as_the_number_that_it_stands_for() -> None:
    model, _ = prepare(Classifier(), peft=LoRA(rank=2, alpha=32, target_modules=["query"]))
    with pytest.raises(AdapterError, match="alpha is 32, not 4"):
        prepare(model, peft=METHOD)
    prepare(prepare(Classifier(), peft=METHOD)[0], peft=LoRA(rank=2, alpha=4.0, target_modules=["query"]))
