"""Which adapters a model has, and switching them off for a while. Active and trainable are separate states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import cast

from torch import nn

from frostline.adapters.base import PEFT
from frostline.adapters.layers.in_place import InPlaceAdapted
from frostline.errors import AdapterError
from frostline.tree import canonical_named_modules, unwrap

_ATTRIBUTE = "_frostline_adapters"


@dataclass(frozen=True)
class InjectedAdapter:
    """One adapter of a model: its name, the method that made it, the paths of the modules it adapts."""

    name: str
    method: PEFT
    targets: tuple[str, ...]


def adapters_of(model: nn.Module) -> Mapping[str, InjectedAdapter]:
    """Adapters of `model` by name; empty for a bare model."""
    held = unwrap(model).__dict__.get(_ATTRIBUTE)
    return MappingProxyType(cast("dict[str, InjectedAdapter]", held) if isinstance(held, dict) else {})


def record_adapter(model: nn.Module, record: InjectedAdapter) -> None:
    """Remember `record` on the (unwrapped) model."""
    unwrap(model).__dict__.setdefault(_ATTRIBUTE, {})[record.name] = record


def forget_adapter(model: nn.Module, name: str) -> None:
    """Take the record of an adapter away again."""
    target = unwrap(model)
    held = target.__dict__.get(_ATTRIBUTE, {})
    held.pop(name, None)
    if not held:
        target.__dict__.pop(_ATTRIBUTE, None)


def is_adapted(module: nn.Module) -> bool:
    """Whether `module` itself carries an adapter in place."""
    return isinstance(module, InPlaceAdapted)


@contextmanager
def disabled(model: nn.Module) -> Iterator[None]:
    """Within the block every adapter is inactive: the model computes as its base. No trainability flag changes.

    Raises:
        AdapterError: adapters are merged into the base weights.
    """
    adapted = [module for _, module in canonical_named_modules(model) if isinstance(module, InPlaceAdapted)]
    if any(module.frostline_merged for module in adapted):
        raise AdapterError(
            "the adapters are merged into the base weights, and cannot be switched off there",
            where="disabled",
            possible="a model whose adapters are not merged",
            fix="call unmerge(model) first",
        )
    before = [module.frostline_enabled for module in adapted]
    for module in adapted:
        module.frostline_enabled = False
    try:
        yield
    finally:
        for module, enabled in zip(adapted, before, strict=True):
            module.frostline_enabled = enabled
