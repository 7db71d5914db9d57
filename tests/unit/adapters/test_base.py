from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from frostline.adapters import LoRA, adapters_of, method_names, parse_method
from frostline.config.origin import Origins
from frostline.errors import AdapterError, ConfigError


def test_methods_are_found_by_name() -> None:
    assert "lora" in method_names()
    assert parse_method({"method": "lora", "rank": 4}) == LoRA(rank=4)
    assert parse_method({}) == LoRA()


def test_an_unknown_method_is_named_with_those_there_are() -> None:
    origins = Origins("run.yaml", {("peft", "method"): 3}, frozenset(), ("peft",))
    with pytest.raises(ConfigError, match=r"peft.method is 'lara'(.|\n)*run.yaml, line 3(.|\n)*methods: .*lora"):
        parse_method({"method": "lara"}, origins)


def trains(model: Any) -> set[str]:
    return {name for name, param in model.named_parameters() if param.requires_grad}


def test_calling_a_method_freezes_the_base_and_returns_the_model(net: Any) -> None:
    assert LoRA(target_modules=["q_proj"])(net) is net
    assert trains(net) == {
        f"layers.{index}.q_proj.lora_{letter}.default.weight" for index in range(2) for letter in "AB"
    }


def test_calling_it_again_leaves_the_adapter_trainable(net: Any) -> None:
    LoRA()(net)
    before = trains(net)
    LoRA()(net)
    assert trains(net) == before


def test_a_list_of_chunks(build_net: Callable[..., Any]) -> None:
    chunks = [build_net(), build_net(3)]
    assert LoRA()(chunks) is chunks
    assert [len(adapters_of(chunk)["default"].targets) for chunk in chunks] == [4, 6]


def test_another_method_of_the_same_name_leaves_all_flags(net: Any) -> None:
    LoRA()(net)
    net.embed.weight.requires_grad_(True)
    before = trains(net)
    with pytest.raises(AdapterError, match="already has an adapter"):
        LoRA(rank=3)(net)
    assert trains(net) == before
