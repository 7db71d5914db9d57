from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from frostline.adapters import LoRA, adapters_of, disabled, inject, merge, remove_adapters, unmerge
from frostline.errors import AdapterError


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(model: nn.Module, before: dict[str, Tensor]) -> None:
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize("action", [merge, unmerge])
def test_a_bare_model_has_nothing_to_merge(net: Any, action: Callable[..., Any]) -> None:
    with pytest.raises(AdapterError, match="the model has no adapter and no trained rows to merge"):
        action(net)


def test_unmerge_needs_a_merge(net: Any) -> None:
    inject(net, LoRA())
    with pytest.raises(AdapterError, match="nothing is merged"):
        unmerge(net)


def test_a_merge_that_is_not_finite_changes_nothing(net: Any, scattered: Callable[..., None]) -> None:
    inject(net, LoRA(rank=2))
    scattered(net)
    net.layers[1].v_proj.lora_B["default"].weight.data[0, 0] = float("inf")
    before = snapshot(net)
    with pytest.raises(AdapterError, match=r"not finite in layers\.1\.v_proj\.weight"):
        merge(net)
    assert_same(net, before)
    assert list(adapters_of(net)) == ["default"]


def test_a_sum_too_large_for_float16_is_refused() -> None:
    net = nn.ModuleDict({"proj": nn.Linear(2, 2).half()})
    inject(net, LoRA(rank=1, alpha=1.0))
    with torch.no_grad():
        net["proj"].lora_A["default"].weight.fill_(300.0)  # pyright: ignore[reportIndexIssue, reportAttributeAccessIssue]
        net["proj"].lora_B["default"].weight.fill_(300.0)  # pyright: ignore[reportIndexIssue, reportAttributeAccessIssue]
    with pytest.raises(AdapterError, match="not finite"):
        merge(net)


def test_the_sum_is_rounded_once(scattered: Callable[..., None]) -> None:
    net = nn.ModuleDict({"proj": nn.Linear(6, 6).bfloat16()})
    inject(net, LoRA(rank=2), adapter="a")
    inject(net, LoRA(rank=2), adapter="b")
    scattered(net)
    layer: Any = net["proj"]
    exact = layer.weight.float() + layer.frostline_delta("a") + layer.frostline_delta("b")
    merge(net)
    assert torch.equal(layer.weight, exact.bfloat16())


def test_an_adapter_added_after_a_merge_stays_active(net: Any, tokens: Tensor, scattered: Callable[..., None]) -> None:
    inject(net, LoRA(rank=2, target_modules=["q_proj"]), adapter="a")
    scattered(net)
    before = snapshot(net)
    merge(net, keep=True)
    merged = net(tokens)
    inject(net, LoRA(rank=2, target_modules=["q_proj", "v_proj"]), adapter="b")
    assert torch.equal(net(tokens), merged)
    with torch.no_grad():
        for name, param in net.named_parameters():
            if ".lora_B.b." in name:
                param.fill_(0.1)
    assert not torch.equal(net(tokens), merged)
    unmerge(net)
    assert all(torch.equal(net.state_dict()[name], value) for name, value in before.items())


def test_merged_adapters_cannot_be_switched_off(net: Any) -> None:
    inject(net, LoRA())
    merge(net, keep=True)
    with pytest.raises(AdapterError, match=r"merged into the base weights(.|\n)*unmerge"), disabled(net):
        pass
    unmerge(net)
    with disabled(net):
        pass


def test_a_copy_of_a_merged_model_can_be_unmerged(net: Any, scattered: Callable[..., None]) -> None:
    import copy

    inject(net, LoRA(rank=2))
    scattered(net)
    before = snapshot(net)
    merge(net, keep=True)
    twin = copy.deepcopy(net)
    unmerge(twin)
    assert_same(twin, before)
    assert not torch.equal(net.layers[0].q_proj.weight, twin.layers[0].q_proj.weight)


def test_case_75_a_parametrized_weight_is_adapted_but_never_merged(
    net: Any, tokens: Tensor, scattered: Callable[..., None]
) -> None:
    class Doubled(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    parametrize.register_parametrization(net.layers[0].q_proj, "weight", Doubled())
    base = net(tokens)
    inject(net, LoRA(rank=2))
    assert torch.equal(net(tokens), base)
    scattered(net)
    before, output = snapshot(net), net(tokens)
    with pytest.raises(AdapterError, match=r"layers\.0\.q_proj\.weight is computed from other parameters"):
        merge(net)
    assert_same(net, before)
    assert torch.equal(net(tokens), output)
    assert parametrize.is_parametrized(net.layers[0].q_proj, "weight")


def test_case_66_after_a_merge_names_and_ties_are_those_of_the_base(
    net: Any, build_net: Callable[..., Any], tokens: Tensor, scattered: Callable[..., None]
) -> None:
    net.lm_head.weight = net.embed.weight
    inject(net, LoRA(rank=2))
    scattered(net)
    merge(net)
    assert net.lm_head.weight is net.embed.weight
    again = build_net()
    again.lm_head.weight = again.embed.weight
    again.load_state_dict(net.state_dict())
    assert torch.equal(again(tokens), net(tokens))


def test_remove_adapters_restores_the_base(net: Any, build_net: Callable[..., Any], tokens: Tensor) -> None:
    inject(net, LoRA(), adapter="a")
    inject(net, LoRA(rank=2), adapter="b")
    remove_adapters(net)
    base = build_net()
    assert [type(module) for module in net.modules()] == [type(module) for module in base.modules()]
    assert torch.equal(net(tokens), base(tokens))
    assert not adapters_of(net)
    inject(net, LoRA(), adapter="a")
