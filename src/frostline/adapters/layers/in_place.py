"""Adapting a module in place: its class becomes a subclass of itself, its parameters stay where they are.

Base checkpoints still load and selectors still match, because no path changes. The class is made once per base class.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from frostline.tree import AdapterPart


class Factor(AdapterPart, nn.Module):
    """Holds one adapter tensor as `.weight`; computes nothing."""

    weight: nn.Parameter

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def extra_repr(self) -> str:
        """Shape for printing."""
        return f"shape={list(self.weight.shape)}"


class FactorBank(AdapterPart, nn.ModuleDict):
    """One factor for each adapter name."""


class InPlaceAdapted:
    """Mixin put before the base class by `adapt_in_place`.

    Attributes:
        adapters_enabled: False makes the module compute exactly as its base.
        adapter_settings: what the maths needs for each adapter, by name (scaling, dropout).
        merged: names of adapters that are folded into the base weight at the moment.
    """

    adapters_enabled: bool
    adapter_settings: dict[str, Any]
    merged: tuple[str, ...]
    frostline_base_class: type[nn.Module]


@cache
def _adapted_class(mixin: type[InPlaceAdapted], base: type[nn.Module]) -> type[nn.Module]:
    name = f"{mixin.__name__.removesuffix('Mixin')}{base.__name__}"
    return type(name, (mixin, base), {"frostline_base_class": base, "__module__": mixin.__module__})


def adapt_in_place(module: nn.Module, mixin: type[InPlaceAdapted]) -> None:
    """Put `mixin` before the class of `module`; idempotent for the same mixin. Mutates `module`.

    Raises:
        TypeError: the module already carries a different mixin.
    """
    if isinstance(module, mixin):
        return
    if isinstance(module, InPlaceAdapted):
        raise TypeError(f"{type(module).__name__} is already adapted by another method")
    module.__class__ = _adapted_class(mixin, type(module))  # type: ignore[assignment]
    module.adapters_enabled = True  # type: ignore[assignment]
    module.adapter_settings = {}  # type: ignore[assignment]
    module.merged = ()  # type: ignore[assignment]


def restore_class(module: nn.Module) -> None:
    """Undo `adapt_in_place`: the module is an ordinary instance of its base class again."""
    if isinstance(module, InPlaceAdapted):
        module.__class__ = module.frostline_base_class  # type: ignore[assignment]
        for name in ("adapters_enabled", "adapter_settings", "merged"):
            module.__dict__.pop(name, None)


def drop_adapter(module: nn.Module, adapter: str) -> None:
    """Undo the adaptation of `module` for one adapter; after the last one it is as `restore_class` leaves it."""
    if not isinstance(module, InPlaceAdapted):
        return
    module.adapter_settings.pop(adapter, None)
    plain = cast("nn.Module", module)
    drop_factors(plain, adapter)
    if not module.adapter_settings:
        restore_class(plain)


def drop_factors(module: nn.Module, adapter: str) -> None:
    """Remove the factors of one adapter, and their banks when these are empty."""
    for name, child in list(module._modules.items()):
        if isinstance(child, FactorBank):
            if adapter in child:
                del child[adapter]
            if not len(child):
                del module._modules[name]


def adapter_dtype(setting: str, base: torch.dtype) -> torch.dtype:
    """Dtype of new adapter tensors beside a weight of dtype `base`.

    `auto` keeps float32 and float64 and takes float32 beside anything narrower (bfloat16, float16, packed integers),
    because small updates are lost in 8 bits of mantissa; every other setting is taken as it is.
    """
    if setting != "auto":
        dtype = getattr(torch, setting)
        assert isinstance(dtype, torch.dtype)
        return dtype
    return base if base in (torch.float32, torch.float64) else torch.float32
