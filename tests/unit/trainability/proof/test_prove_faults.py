"""True faults, each put into a healthy run: the prover finds every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from frostline import LoRA, prepare
from frostline.adapters import weight_readers
from frostline.errors import PlanMismatchError, TrainingError
from frostline.trainability import Prover, set_training_mode

from ..conftest import Encoder, encoder, optimizer_of, step

FREEZE: dict[str, Any] = {"freeze_modules": ["embed", {"layers": ":2"}]}


def running(**config: Any) -> tuple[Encoder, torch.optim.Optimizer, Prover]:
    model, plan = prepare(encoder(), **(config or {"freeze_config": FREEZE}))
    set_training_mode(model, plan)
    return model, optimizer_of(model), Prover(model, plan)


def go(model: nn.Module, optimizer: torch.optim.Optimizer, prover: Prover, num_steps: int = 8) -> None:
    for number in range(num_steps):
        step(model, optimizer, prover, number=number)
    prover.final_check()


@pytest.mark.parametrize("look", [Prover.before_save, Prover.final_check])
def test_a_hook_that_writes_a_frozen_weight_in_step_5(look: Callable[[Prover], Any]) -> None:
    """Row 15: nothing but the plan's part moves, in any step."""
    model, optimizer, prover = running()
    calls: list[int] = []

    def clip(module: nn.Module, args: Any) -> None:
        calls.append(1)
        if len(calls) == 5:
            module.layers[1].linear.weight.data.clamp_(-0.1, 0.1)

    model.register_forward_pre_hook(clip)
    for number in range(4):
        step(model, optimizer, prover, number=number)
    prover.before_save()
    step(model, optimizer, prover, number=4)
    with pytest.raises(PlanMismatchError, match=r"1 frozen tensors changed during the run: layers\.1\.linear\.weight"):
        look(prover)


@pytest.mark.parametrize("first", [0, 3])
def test_an_optimizer_over_a_frozen_tensor_that_somebody_thawed(first: int) -> None:
    model, optimizer, prover = running()
    optimizer.add_param_group({"params": [model.embed.weight]})

    def go_on() -> None:
        for number in range(5):
            model.embed.weight.requires_grad_(number >= first)
            step(model, optimizer, prover, number=number)
        prover.final_check()

    with pytest.raises(PlanMismatchError, match=r"embed\.weight"):
        go_on()


def test_two_frozen_elements_that_change_places() -> None:
    model, optimizer, prover = running()
    step(model, optimizer, prover)
    model.embed.weight.data = model.embed.weight.data.flip(0)
    with pytest.raises(PlanMismatchError, match=r"embed\.weight"):
        prover.final_check()


def test_statistics_of_a_frozen_batch_norm_that_is_set_to_training() -> None:
    """Row 31: frozen normalization drifts behind the back of its flag."""
    model, optimizer, prover = running()
    model.layers[0].norm.training = True
    with pytest.raises(PlanMismatchError, match=r"layers\.0\.norm\.running_mean"):
        go(model, optimizer, prover)


def test_statistics_that_somebody_sets_to_training_in_a_later_step() -> None:
    """Row 31."""
    model, optimizer, prover = running()
    step(model, optimizer, prover)
    model.layers[0].norm.training = True
    step(model, optimizer, prover, number=1)
    for look in (prover.before_save, prover.final_check):
        with pytest.raises(PlanMismatchError, match=r"layers\.0\.norm\.running_mean"):
            look()


def test_dropout_of_a_frozen_part_that_is_set_to_training() -> None:
    model, optimizer, prover = running()
    model.layers[0].dropout.training = True
    with pytest.raises(PlanMismatchError, match=r"frozen modules are in training mode: layers\.0\.dropout"):
        go(model, optimizer, prover)
    model, optimizer, prover = running(freeze_config={**FREEZE, "frozen_mode": "train"})
    go(model, optimizer, prover)


def test_a_detached_branch() -> None:
    class Detached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.main, self.side = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.main(x) + self.side(x).detach()

    for peft in (None, LoRA(rank=1)):
        model, plan = prepare(Detached(), peft=peft)
        with pytest.raises(TrainingError, match=r"2 trained tensors got no gradient at step 0: side\."):
            step(model, optimizer_of(model), Prover(model, plan))


class Reader(nn.Module):
    """`layer` reads weights of its own children past their forward, in training or in evaluation."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.layer(x, x, x)[0] if isinstance(self.layer, nn.MultiheadAttention) else self.layer(x)
        return self.head(mixed)


def test_adapters_of_torch_modules_that_read_weights_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention of torch in training; the fast path of its encoder layer in evaluation only, and only without hooks."""
    x = torch.randn(2, 3, 8)
    monkeypatch.setattr(weight_readers, "_read_by", lambda cls: {})  # the table that refuses them before
    thaw = {"unfreeze_modules": ["head"]}
    attention = Reader(nn.MultiheadAttention(8, 2))
    model, plan = prepare(attention, peft=LoRA(rank=1, target_modules=["out_proj"]), freeze_config=thaw)
    model.train()
    prover = Prover(model, plan)
    model(x).square().sum().backward()
    with pytest.raises(TrainingError, match=r"the adapters of layer\.out_proj did not run in training"):
        prover.before_step(0, 0.1)

    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model, plan = prepare(Reader(layer), peft=LoRA(rank=1, target_modules=["linear1", "linear2"]))
    model.train()
    prover = Prover(model, plan)
    model(x).square().sum().backward()
    prover.before_step(0, 0.1)
    prover.evaluation_begin()
    with torch.no_grad():
        model.eval()(x)
    with pytest.raises(TrainingError, match=r"adapters of layer\.linear1, layer\.linear2 did not run in evaluation"):
        prover.evaluation_end()


def test_a_module_that_is_called_by_its_forward_is_no_bypass() -> None:
    class Calls(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.inner.forward(x))

    model, plan = prepare(Calls(), peft=LoRA(rank=1))
    optimizer, prover = optimizer_of(model), Prover(model, plan)
    go(model, optimizer, prover)
    assert prover.remarks == []


def test_a_forward_that_stood_on_the_instance_is_called_and_stays() -> None:
    model, plan = prepare(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), peft=LoRA(rank=1))
    plain, calls = model[0].forward, []
    own = lambda x: calls.append(1) or plain(x)  # noqa: E731 - a name is needed to compare it afterwards
    model[0].forward = own
    optimizer, prover = optimizer_of(model), Prover(model, plan)
    go(model, optimizer, prover, num_steps=3)
    assert len(calls) == 3
    assert model[0].forward is own
