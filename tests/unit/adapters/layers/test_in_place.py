from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from frostline.adapters.layers.in_place import (
    Factor,
    FactorBank,
    InPlaceAdapted,
    adapt_in_place,
    adapter_dtype,
    drop_adapter,
    restore_class,
)
from frostline.adapters.layers.lora_linear import LoRAMixin


class Special(nn.Linear):
    pass


@pytest.mark.parametrize("base", [nn.Linear, Special])
def test_the_class_becomes_a_subclass_of_itself_and_back(base: type[nn.Linear]) -> None:
    module, other = base(2, 3), base(2, 3)
    adapt_in_place(module, LoRAMixin)
    adapt_in_place(module, LoRAMixin)  # idempotent
    adapt_in_place(other, LoRAMixin)
    assert isinstance(module, base)
    assert type(module) is type(other)
    assert type(module).__name__ == f"LoRA{base.__name__}"
    assert list(module.state_dict()) == ["weight", "bias"]
    restore_class(module)
    assert type(module) is base
    assert not {"frostline_enabled", "frostline_settings", "frostline_merged"} & set(vars(module))


def test_two_mixins_do_not_mix() -> None:
    class OtherMixin(InPlaceAdapted):
        pass

    module = nn.Linear(2, 3)
    adapt_in_place(module, LoRAMixin)
    with pytest.raises(TypeError, match="already adapted by another method"):
        adapt_in_place(module, OtherMixin)


def test_dropping_one_adapter_keeps_the_others() -> None:
    module = nn.Linear(2, 3)
    drop_adapter(module, "a")  # nothing there: harmless
    adapt_in_place(module, LoRAMixin)
    assert isinstance(module, LoRAMixin)
    module.lora_A = FactorBank({"a": Factor(torch.zeros(1, 2)), "b": Factor(torch.zeros(1, 2))})
    module.frostline_settings.update(a=1, b=2)  # type: ignore[arg-type]
    drop_adapter(module, "a")
    assert list(module.lora_A) == ["b"]
    drop_adapter(module, "b")
    assert type(module) is nn.Linear
    assert not list(module.children())


def test_a_copy_is_independent() -> None:
    module = nn.Linear(2, 3)
    adapt_in_place(module, LoRAMixin)
    twin = copy.deepcopy(module)
    twin.frostline_settings["x"] = 1  # type: ignore[index]
    assert not module.frostline_settings  # type: ignore[truthy-function]
    assert type(twin) is type(module)


class Slotted(nn.Linear):
    """Says itself how it is rebuilt."""

    def __reduce__(self) -> Any:
        return Slotted, (self.in_features, self.out_features), self.__dict__


@pytest.mark.parametrize("base", [nn.Linear, Special, Slotted])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_adapted_module_pickles(base: type[nn.Linear], protocol: int) -> None:
    module = base(2, 3)
    adapt_in_place(module, LoRAMixin)
    module.frostline_settings["x"] = 1  # type: ignore[index]
    twin = pickle.loads(pickle.dumps(module, protocol))
    assert type(twin) is type(module)
    assert torch.equal(twin.weight, module.weight)
    assert twin.frostline_settings == {"x": 1}


@pytest.mark.parametrize(
    ("setting", "base", "expected"),
    [
        ("auto", torch.float32, torch.float32),
        ("auto", torch.float64, torch.float64),
        ("auto", torch.bfloat16, torch.float32),
        ("auto", torch.float16, torch.float32),
        ("auto", torch.int8, torch.float32),
        ("bfloat16", torch.float32, torch.bfloat16),
        ("float32", torch.float64, torch.float32),
    ],
)
def test_case_81_the_rule_of_dtypes(setting: str, base: torch.dtype, expected: torch.dtype) -> None:
    assert adapter_dtype(setting, base) is expected
