"""Frozen means still: modes, statistics, dropout and weight decay, whoever calls what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from frostline import LoRA, load_adapter, prepare, save_adapter
from frostline.config.models import OptimizerConfig
from frostline.preparation import release
from frostline.trainability import Prover, set_training_mode
from frostline.training.optimizer import OPTIMIZERS, build_optimizer

from ..conftest import changed, encoder, snapshot

FREEZE: dict[str, Any] = {"freeze_modules": ["embed", {"layers": ":2"}]}


def each_module(model: nn.Module) -> None:
    for module in model.modules():
        module.train()


def each_module_backwards(model: nn.Module) -> None:
    for module in reversed(list(model.modules())):
        module.train(True)


def as_lightning_restores(model: nn.Module) -> None:
    """Lightning notes every module's mode, validates, and writes each mode back."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    for module, mode in modes.items():
        module.train(mode)


def as_the_hugging_face_trainer(model: nn.Module) -> None:
    model.train()
    for _ in range(2):
        model.eval()
        model.train()


CALLS: list[Callable[[Any], Any]] = [
    nn.Module.train,
    lambda model: model.layers.train(),
    lambda model: model.layers[0].train(),
    lambda model: model.layers[0].norm.train(),
    lambda model: model.apply(lambda module: module.train()),
    each_module,
    each_module_backwards,
    as_lightning_restores,
    as_the_hugging_face_trainer,
]


@pytest.mark.parametrize("call", CALLS)
def test_no_way_to_call_train_wakes_a_frozen_subtree(call: Callable[[Any], Any]) -> None:
    """Row 31: statistics of frozen BatchNorm layers stay through later `train()` calls, and so does dropout."""
    model, plan = prepare(encoder(), freeze_config=FREEZE)
    set_training_mode(model, plan)
    call(model)
    assert [block.norm.training for block in model.layers] == [False, False, True]
    assert [block.dropout.training for block in model.layers] == [False, False, True]
    assert not any(module.training for module in model.layers[0].modules() if not isinstance(module, nn.Linear))
    before = snapshot(model)
    first, second = (model.layers[1](model.layers[0](torch.ones(8, 4))) for _ in range(2))
    assert torch.equal(first, second), "dropout"
    model(torch.randn(8, 4))
    assert changed(model, before) == {
        f"layers.2.norm.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")
    }


def test_a_normalization_that_is_frozen_inside_a_trained_block_is_still() -> None:
    """Row 31: of a block whose linear trains, the frozen BatchNorm keeps its statistics."""
    model, plan = prepare(encoder(), freeze_config={"freeze_modules": [{"type": "BatchNorm1d"}]})
    assert plan.frozen_roots == ("layers.0.norm", "layers.1.norm", "layers.2.norm")
    each_module(model)
    before = snapshot(model)
    model(torch.randn(8, 4))
    assert changed(model, before) == set()
    assert all(block.dropout.training for block in model.layers), "what belongs to the trained block trains"


def test_one_frozen_parameter_does_not_hold_a_module_of_which_another_trains() -> None:
    model, _ = prepare(encoder(), freeze_config={"freeze_modules": [{"param": "layers.0.norm.weight"}]})
    before = snapshot(model)
    each_module(model)
    model(torch.randn(8, 4))
    assert "layers.0.norm.running_mean" in changed(model, before)


def test_a_normalization_without_parameters_follows_the_subtree_around_it() -> None:
    """Row 31: statistics belong to nobody's flag where a BatchNorm has no weights; the frozen subtree decides."""

    def built() -> nn.Module:
        return nn.Sequential(
            nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False)),
            nn.BatchNorm1d(4, affine=False),
            nn.Linear(4, 2),
        )

    model, _ = prepare(built(), freeze_config={"freeze_modules": ["0"]})
    each_module(model)
    before = snapshot(model)
    model(torch.randn(8, 4))
    assert {name.rpartition(".")[0] for name in changed(model, before)} == {"1"}


def test_freezing_and_thawing_are_symmetric_for_every_module() -> None:
    """Row 33: thawing gives statistics back, and nothing stays behind on a module."""
    model = encoder()
    model.train()
    prepare(model, freeze_config=FREEZE)
    each_module(model)
    release(model)
    assert all(module.training for module in model.modules())
    assert not any("train" in module.__dict__ for module in model.modules())
    model.eval()
    assert not any(module.training for module in model.modules())


class Convolutional(nn.Module):
    """image [batch, 1, 6, 6] -> [batch, 2], with statistics and no other normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.project, self.head = (
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 4), nn.Linear(4, 2)
        )  # fmt: skip

    def forward(self, image: Tensor) -> Tensor:
        return self.head(torch.relu(self.project(self.norm(self.conv(image)).mean((2, 3)))))


@pytest.mark.parametrize("config", [{}, {"unfreeze_modules": ["norm"]}, {"frozen_mode": "train", "freeze_modules": []}])
def test_an_adapter_reloads_with_the_statistics_that_it_was_trained_with(config: Any, tmp_path: Any) -> None:
    """Row 32: statistics are frozen, or saved with the adapter; never neither."""
    torch.manual_seed(0)
    model = Convolutional()
    base = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model, plan = prepare(model, peft=LoRA(rank=2, target_modules=["project"]), freeze_config=config)
    set_training_mode(model, plan)
    optimizer = torch.optim.AdamW([param for param in model.parameters() if param.requires_grad], lr=0.1)
    for _ in range(5):
        model(3 + 2 * torch.randn(8, 1, 6, 6)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    moved = not torch.equal(model.norm.running_mean, base["norm.running_mean"])
    assert moved == bool(config)
    save_adapter(model, tmp_path / "adapter")
    fresh = Convolutional()
    fresh.load_state_dict(base)
    again, _ = load_adapter(fresh, tmp_path / "adapter")
    image = torch.randn(2, 1, 6, 6)
    assert torch.equal(again.eval()(image), model.eval()(image))


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_no_weight_decay_reaches_anything_frozen_whatever_the_optimizer(name: str) -> None:
    """Row 36: frozen tensors are bit-identical after any number of steps, decay and momentum or not."""
    model, plan = prepare(encoder(), freeze_config={**FREEZE, "unfreeze_modules": [{"param": "layers.0.linear.bias"}]})
    set_training_mode(model, plan)
    config = OptimizerConfig.model_validate({"name": name, "lr": 0.1, "weight_decay": 0.5})
    optimizer = build_optimizer(model, plan, config, lr=0.1)
    before, prover = snapshot(model), Prover(model, plan)
    for number in range(5):
        model(torch.randn(8, 4)).square().sum().backward()
        prover.before_step(number, 0.1, optimizer)
        optimizer.step()
        prover.after_step()
        optimizer.zero_grad()
    prover.final_check()
    moved = changed(model, before)
    assert not moved & set(plan.frozen)
    assert {"layers.0.linear.bias", "head.weight"} <= moved


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_a_tensor_that_is_frozen_later_keeps_its_bits_beside_its_moments(name: str) -> None:
    """Row 36: old momentum and decay do not reach a member of the optimizer without gradient."""
    model, plan = prepare(encoder())
    config = OptimizerConfig.model_validate({"name": name, "lr": 0.1, "weight_decay": 0.5})
    optimizer = build_optimizer(model, plan, config, lr=0.1)
    model.eval()
    for number in range(4):
        if number == 2:
            model.embed.requires_grad_(False)
            before = snapshot(model)
        model(torch.randn(8, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    assert {path for path in changed(model, before) if path.startswith("embed")} == set()
    assert "head.weight" in changed(model, before)
