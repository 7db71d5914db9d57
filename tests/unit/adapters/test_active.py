from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from frostline.adapters import LoRA, adapters_of, disabled, inject, is_adapted
from frostline.tree import set_trainable


def test_a_bare_model_has_no_adapters(net: Any) -> None:
    assert adapters_of(net) == {}
    assert not any(is_adapted(module) for module in net.modules())
    with disabled(net):  # harmless
        pass


def test_the_answer_is_read_only(net: Any) -> None:
    inject(net, LoRA())
    with pytest.raises(TypeError):
        adapters_of(net)["x"] = adapters_of(net)["default"]  # type: ignore[index]


def test_exactly_the_targets_are_adapted(net: Any) -> None:
    record = inject(net, LoRA(target_modules=["v_proj"]), adapter="x")
    assert adapters_of(net) == {"x": record}
    assert tuple(name for name, module in net.named_modules() if is_adapted(module)) == record.targets


@pytest.mark.parametrize("trained", [True, False])
def test_cases_24_and_25_switching_off_touches_no_flag(net: Any, tokens: Tensor, trained: bool) -> None:
    LoRA(rank=2)(net)
    for name, param in net.named_parameters():
        set_trainable(param, (".lora_" in name) == trained)
    flags = {name: param.requires_grad for name, param in net.named_parameters()}
    with disabled(net):
        assert {name: param.requires_grad for name, param in net.named_parameters()} == flags
        net(tokens)
    assert {name: param.requires_grad for name, param in net.named_parameters()} == flags


def test_a_part_of_a_model_can_be_switched_off(net: Any) -> None:
    inject(net, LoRA(rank=2))
    for layer in net.layers:
        nn.init.ones_(layer.q_proj.lora_B["default"].weight)
    x = torch.randn(2, 6)
    before = [layer.q_proj(x) for layer in net.layers]
    with disabled(net.layers[0]):
        assert not torch.equal(net.layers[0].q_proj(x), before[0])
        assert torch.equal(net.layers[1].q_proj(x), before[1])


def test_a_copy_has_its_own_records_and_switch(net: Any, tokens: Tensor) -> None:
    inject(net, LoRA(rank=2))
    twin = copy.deepcopy(net)
    inject(twin, LoRA(rank=2), adapter="second")
    assert list(adapters_of(net)) == ["default"]
    with disabled(twin):
        assert net.layers[0].q_proj.frostline_enabled
        assert not twin.layers[0].q_proj.frostline_enabled
