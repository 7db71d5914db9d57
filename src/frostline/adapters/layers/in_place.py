"""Adapting a module in place: its class becomes a subclass of itself, its parameters stay where they are.

Base checkpoints still load and selectors still match, because no path changes. The class is made once per base class.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, SupportsIndex, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from frostline.errors import AdapterError
from frostline.tree import AdapterPart, is_distributed, update_dtype


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
    """Mixin put before the base class by `adapt_in_place`. It pickles and copies as its base class does.

    A mixin that is itself a layer of torch (`class M(InPlaceAdapted, nn.Embedding)`) is put behind the base class
    instead, right before that layer: what the base class computes around `super().forward` stays around it.

    Every name that it adds to a module begins with `frostline_`, because the base may have any attribute of its own.

    Attributes:
        frostline_enabled: False makes the module compute exactly as its base.
        frostline_settings: what the maths needs for each adapter, by name (scaling, dropout).
        frostline_merged: names of adapters that are folded into the base weight at the moment.
    """

    frostline_enabled: bool
    frostline_settings: dict[str, Any]
    frostline_merged: tuple[str, ...]
    frostline_base_class: type[nn.Module]
    frostline_mixin: type[InPlaceAdapted]

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """As the base, which pickle finds by name, and then adapted again: the class itself has no importable name."""
        reduced = super().__reduce_ex__(protocol)
        kind = type(self)
        if isinstance(reduced, str) or "frostline_base_class" not in kind.__dict__:
            return cast("tuple[Any, ...]", reduced)  # a subclass that another library has made: not ours to name
        make, arguments, *rest = reduced
        arguments = tuple(self.frostline_base_class if value is kind else value for value in arguments)
        return (_rebuild, (kind.frostline_mixin, make, arguments), *rest)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """As the base; refused is what torch's tensor parallel styles do, before anything has changed.

        Raises:
            AdapterError: a distributed weight, beside adapter tensors that are whole.
        """
        module = cast("Any", self)
        if param is not None and is_distributed(param) and name in ("weight", "bias"):
            beside = [held for key, held in module.named_parameters() if key not in ("weight", "bias")]
            if any(not is_distributed(held) for held in beside):
                raise AdapterError(
                    f"a {self.frostline_base_class.__name__} with an adapter or trained rows is to become tensor "
                    "parallel, but torch's styles know only its weight and bias",
                    where="parallelize_module",
                    possible="tensor parallel modules without adapters; adapters in the other modules, under FSDP2 "
                    "(fully_shard) or DDP in any module",
                    fix="leave the tensor parallel modules out of peft.target_modules (`exclude_modules`), or do not "
                    "parallelize those that have adapters",
                )
        cast("Any", super()).register_parameter(name, param)


def _rebuild(mixin: type[InPlaceAdapted], make: Callable[..., nn.Module], arguments: tuple[Any, ...]) -> nn.Module:
    module = make(*arguments)
    module.__class__ = _adapted_class(mixin, type(module))  # type: ignore[assignment]
    return module


@cache
def _adapted_class(mixin: type[InPlaceAdapted], base: type[nn.Module]) -> type[nn.Module]:
    name = f"{mixin.__name__.removesuffix('Mixin')}{base.__name__}"
    bases: tuple[type, ...] = (mixin, base)
    if issubclass(mixin, nn.Module):  # it stands right before the class of torch that it derives from, below `base`
        bases = (mixin,) if issubclass(mixin, base) else (base, mixin)
    about = {"frostline_base_class": base, "frostline_mixin": mixin, "__module__": mixin.__module__}
    return type(name, bases, about)


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
    # Not by `nn.Module.__setattr__`, which looks for a parameter, a module and a buffer of that name first.
    module.__dict__.update(frostline_enabled=True, frostline_settings={}, frostline_merged=())


def add_factor(module: nn.Module, bank: str, adapter: str, weight: Tensor) -> None:
    """Give `module` the factor `bank.adapter`, with a bank where it has none of that name yet. Mutates `module`.

    Raises:
        KeyError: `module` has something else under the name of the bank, or ModuleDict under that of the adapter.
    """
    if bank not in module._modules:
        _add_child(module, bank, _blank(FactorBank))
    factor = _blank(Factor)
    factor._parameters["weight"] = nn.Parameter(weight)
    _add_child(cast("nn.Module", module._modules[bank]), adapter, factor)


def _add_child(parent: nn.Module, name: str, child: nn.Module) -> None:
    """`parent.add_module(name, child)`; its search for an attribute of that name costs more than all the rest."""
    is_free = name not in parent.__dict__ and name not in parent._parameters and name not in parent._buffers
    if is_free and not _class_has(type(parent), name) and not torch_module._global_module_registration_hooks:
        parent._modules[name] = child
    else:
        parent.add_module(name, child)


@cache
def _class_has(cls: type[nn.Module], name: str) -> bool:
    return hasattr(cls, name) or "." in name or not name


_Blank = TypeVar("_Blank", bound=nn.Module)


def _blank(cls: type[_Blank]) -> _Blank:
    """A module without parameters, with the state that `nn.Module.__init__` would give it."""
    made = cls.__new__(cls)
    constants, containers = _initial_state(cls)
    state = made.__dict__
    state.update(constants)
    for key, kind in containers:
        state[key] = kind()
    return made


@cache
def _initial_state(cls: type[nn.Module]) -> tuple[dict[str, Any], list[tuple[str, Callable[[], Any]]]]:
    """The constants of a new module, and the type of each of its containers, which are all empty."""
    fresh = cls.__new__(cls)
    nn.Module.__init__(fresh)
    containers = {key: type(value) for key, value in fresh.__dict__.items() if isinstance(value, (dict, set))}
    return {key: value for key, value in fresh.__dict__.items() if key not in containers}, list(containers.items())


def restore_class(module: nn.Module) -> None:
    """Undo `adapt_in_place`: the module is an ordinary instance of its base class again."""
    if isinstance(module, InPlaceAdapted):
        module.__class__ = module.frostline_base_class  # type: ignore[assignment]
        for name in ("frostline_enabled", "frostline_settings", "frostline_merged"):
            module.__dict__.pop(name, None)


def drop_adapter(module: nn.Module, adapter: str) -> None:
    """Undo the adaptation of `module` for one adapter; after the last one it is as `restore_class` leaves it."""
    if not isinstance(module, InPlaceAdapted):
        return
    module.frostline_settings.pop(adapter, None)
    plain = cast("nn.Module", module)
    drop_factors(plain, adapter)
    if not module.frostline_settings:
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

    `auto` is what `update_dtype` says; every other setting is taken as it is.
    """
    if setting != "auto":
        dtype = getattr(torch, setting)
        assert isinstance(dtype, torch.dtype)
        return dtype
    return update_dtype(base)
