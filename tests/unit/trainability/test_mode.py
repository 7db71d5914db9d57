"""Frozen parts stay in evaluation mode through every `train()` call, and follow the model again when released."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from frostline import prepare, resolve
from frostline.preparation import release
from frostline.trainability import hold_in_eval, set_training_mode

from .conftest import changed, encoder, optimizer_of, snapshot, step

FREEZE = {"freeze_modules": ["embed", {"layers": ":2"}]}


def statistics_moved(model: nn.Module) -> set[str]:
    before = snapshot(model)
    model(torch.randn(8, 4))
    return {name.partition(".norm")[0] for name in changed(model, before) if "running" in name}


def test_case_31_frozen_normalization_and_dropout_are_still_through_later_train_calls() -> None:
    model, plan = prepare(encoder(), freeze_config=FREEZE)
    assert plan.frozen_roots == ("embed", "layers.0", "layers.1")
    before = snapshot(model)
    for _ in range(2):
        model.train()
        model.layers.train()
        model.layers[0].train()
        assert [block.dropout.training for block in model.layers] == [False, False, True]
        assert model.training
        assert model.layers.training
        assert statistics_moved(model) == {"layers.2"}
        model.eval()
    optimizer = optimizer_of(model)
    model.train()
    for _ in range(5):
        step(model, optimizer)
    assert {name.rpartition(".")[0] for name in changed(model, before)} <= {
        "head", "layers.2.linear", "layers.2.norm"
    }  # fmt: skip


def test_frozen_mode_train_lets_frozen_parts_follow_the_model() -> None:
    model, plan = prepare(encoder(), freeze_config={**FREEZE, "frozen_mode": "train"})
    model.train()
    assert statistics_moved(model) == {"layers.0", "layers.1", "layers.2"}
    assert any("frozen_mode train" in note for note in plan.notes)
    set_training_mode(model, plan)
    assert all(module.training for module in model.modules())


def test_case_33_freeze_and_unfreeze_are_symmetric() -> None:
    model = encoder()
    model.train()
    prepare(model, freeze_config=FREEZE)
    assert statistics_moved(model) == {"layers.2"}
    release(model)
    assert all(module.training for module in model.modules())  # without another call of train()
    assert statistics_moved(model) == {"layers.0", "layers.1", "layers.2"}
    assert all(param.requires_grad for param in model.parameters())
    assert not any("train" in module.__dict__ for module in model.modules())
    release(model)  # a bare model: nothing to undo


def test_release_leaves_a_model_in_evaluation_mode_there() -> None:
    model, _ = prepare(encoder().eval(), freeze_config=FREEZE)
    release(model)
    assert not any(module.training for module in model.modules())


def test_another_plan_moves_the_border_in_both_directions() -> None:
    model = encoder()
    model.train()
    for frozen in ("layers.0", "layers", "layers.2", "layers"):
        plan = resolve(model, freeze_config={"freeze_modules": [frozen]})
        plan.apply(model)
        for _ in range(2):
            still = [not block.dropout.training for block in model.layers]
            assert still == [frozen in ("layers", f"layers.{n}") for n in range(3)]
            set_training_mode(model, plan)


def test_a_shared_module_that_is_a_root_under_one_path_only_is_held() -> None:
    shared = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    model = nn.ModuleDict({"a": nn.Sequential(shared, nn.Linear(2, 2)), "b": nn.Sequential(shared)})
    hold_in_eval(model, ["a.0", "b"])
    model.train()
    model["a"].train()
    assert not shared.training
    assert not shared[1].training
    assert model["a"].training


def test_a_module_with_its_own_train_is_held_too() -> None:
    class Stubborn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(1, 1)

        def train(self, mode: bool = True) -> Stubborn:
            return super().train(True)

    model = nn.ModuleDict({"a": Stubborn(), "b": nn.Linear(1, 1)})
    prepare(model, freeze_config={"freeze_modules": ["a"]})
    assert not model.train()["a"].training


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:FutureWarning")
def test_a_compiled_model_honours_it() -> None:
    model = torch.compile(encoder(), backend="eager")
    assert isinstance(model, nn.Module)
    prepare(model, freeze_config=FREEZE)
    model.train()
    assert statistics_moved(model) == {"_orig_mod.layers.2"}


class KeepsItsChildrenTraining(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Dropout()

    def train(self, mode: bool = True) -> KeepsItsChildrenTraining:
        self.training = mode
        return self


class SetsFlagsItsOwnWay(nn.Module):
    def __setattr__(self, name: str, value: object) -> None:
        if name == "training":
            self.__dict__.setdefault("seen", []).append(value)
        super().__setattr__(name, value)


def test_every_module_of_a_frozen_subtree_is_held_whatever_its_class_does_with_modes() -> None:
    inner = nn.Sequential(nn.Linear(2, 2), KeepsItsChildrenTraining(), SetsFlagsItsOwnWay(), nn.Sequential(nn.ReLU()))
    model = nn.ModuleDict({"a": inner, "ab": nn.Linear(2, 2)})
    hold_in_eval(model, ["a"])
    for module in model.modules():
        module.train()
    modeless = (nn.Linear, nn.ReLU, nn.Sequential)  # they compute the same in either mode
    assert not any(module.training for module in inner.modules() if not isinstance(module, modeless))
    assert inner[2].seen[-1] is False
    assert model["ab"].training, "the border of a component"


def transformer() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
    return nn.Sequential(nn.Embedding(10, 8), nn.TransformerEncoder(layer, 3))


def encode(model: nn.Module, tokens: Tensor, padding: Tensor | None) -> Tensor:
    return model[1](model[0](tokens), src_key_padding_mask=padding)  # type: ignore[index]


@pytest.mark.parametrize("num_frozen", [1, 2])
def test_frozen_first_layers_of_torchs_encoder_take_padded_batches(num_frozen: int) -> None:
    """Row 31 and torch's fast path: it looks at the first layer alone, and later ones take no nested tensors."""
    tokens, padding = torch.arange(10).view(2, 5), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    config = {"freeze_modules": ["0", {"layers": f":{num_frozen}"}]}
    model, plan = prepare(transformer(), freeze_config=config)
    model.train()
    layers = list(model[1].layers)  # type: ignore[index]
    assert [layer.dropout.training for layer in layers] == [False] * num_frozen + [True] * (3 - num_frozen)
    assert [layer.self_attn.training for layer in layers] == [False] * num_frozen + [True] * (3 - num_frozen)
    for layer in layers[num_frozen:]:
        layer.eval()  # so that nothing is drawn, and the slow path can be compared
    output = encode(model, tokens, padding)
    expected = transformer().eval()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        torch.testing.assert_close(output, encode(expected, tokens, padding))
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    output.square().sum().backward()
    assert {name for name, param in model.named_parameters() if param.grad is not None} == set(plan.trainable)
    model.eval()
    assert not any(module.training for module in model.modules())
    release(model)
    model.train()
    assert all(module.training for module in model.modules())
