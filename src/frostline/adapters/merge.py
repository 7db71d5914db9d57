"""Folds adapters into the base weights, and takes them out again exactly."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from frostline.adapters.active import adapters_of, forget_adapter
from frostline.adapters.layers.in_place import drop_factors, restore_class
from frostline.adapters.layers.lora_linear import LoRAMixin
from frostline.errors import AdapterError
from frostline.tree import canonical_named_modules, is_fully_sharded

_BASE_COPY = "_frostline_unmerged_weight"


def merge(model: nn.Module, *, keep: bool = False) -> nn.Module:
    """Add every adapter to its base weight. Mutates and returns `model`.

    The sum is made in float32 (float64 beside float64) and rounded once to the dtype of the base.

    Args:
        keep: False removes the adapters, and the model is plain again. True keeps them beside a copy of each base
            weight, so that `unmerge` restores the base bit for bit.

    Raises:
        AdapterError: the model has no adapter, its parameters are sharded, or a merged weight is not finite; nothing
            is changed then.
    """
    if is_fully_sharded(model):
        raise AdapterError(
            "the model is sharded by fully_shard, so that no process has the weights to merge",
            where="merge",
            possible="a model in one process",
            fix="save the adapter, load it into the base in one process, and merge there",
        )
    adapted = _adapted(model)
    merged: list[Tensor] = []
    for path, module in adapted:
        weight = module.weight
        if module.frostline_base_class.forward is not nn.Linear.forward:
            raise AdapterError(
                f"{path} is a {module.frostline_base_class.__name__}, which computes in a way of its own",
                where="merge",
                possible="linears that compute x W^T + b: only then is a change of W the same as the adapter",
                fix="keep the adapter beside the base",
            )
        if "weight" not in cast("nn.Module", module)._parameters:
            raise AdapterError(
                f"{path}.weight is computed from other parameters (a parametrization), so that nothing can be added",
                where="merge",
                possible="linears whose weight is a parameter",
                fix="remove the parametrization first, with torch.nn.utils.parametrize.remove_parametrizations",
            )
        wide = torch.promote_types(weight.dtype, torch.float32)
        total = weight.detach().to(wide)
        for name in module.frostline_settings:
            if name not in module.frostline_merged:
                total = total + module.frostline_delta(name).detach().to(wide)
        total = total.to(weight.dtype)
        if not bool(torch.isfinite(total).all()):
            raise AdapterError(
                f"merging gives values that are not finite in {path}.weight",
                where="merge",
                possible="finite adapter and base weights",
                fix="inspect the adapter with `frostline inspect RUN --check`",
            )
        merged.append(total)
    for (_, module), total in zip(adapted, merged, strict=True):
        if keep and _BASE_COPY not in module.__dict__:
            module.__dict__[_BASE_COPY] = module.weight.detach().clone()
        with torch.no_grad():
            module.weight.copy_(total)
        module.frostline_merged = tuple(module.frostline_settings)
    if not keep:
        remove_adapters(model)
    return model


def unmerge(model: nn.Module) -> nn.Module:
    """Restore the base weights after `merge(model, keep=True)`, bit for bit. Mutates and returns `model`.

    Raises:
        AdapterError: nothing is merged, or the model has no adapter.
    """
    adapted = _adapted(model)
    if not any(_BASE_COPY in module.__dict__ for _, module in adapted):
        raise AdapterError(
            "nothing is merged", where="unmerge", possible="a model after merge(model, keep=True)", fix="merge first"
        )
    for _, module in adapted:
        if _BASE_COPY in module.__dict__:  # an adapter may have been injected into others since
            with torch.no_grad():
                module.weight.copy_(module.__dict__.pop(_BASE_COPY))
            module.frostline_merged = ()
    return model


def remove_adapters(model: nn.Module) -> None:
    """Take all adapters away; the modules are instances of their base classes again."""
    names = list(adapters_of(model))
    _adapted(model)  # refuses methods that this cannot take away
    for _, module in canonical_named_modules(model):
        if isinstance(module, LoRAMixin):
            plain = cast("nn.Module", module)
            for name in list(module.frostline_settings):
                drop_factors(plain, name)
            plain.__dict__.pop(_BASE_COPY, None)
            restore_class(plain)
    for name in names:
        forget_adapter(model, name)


def unmerged_weights(model: nn.Module) -> dict[str, Tensor]:
    """The base weights that `merge(model, keep=True)` has put aside, by canonical path; empty if nothing is merged."""
    return {
        f"{path}.weight": module.__dict__[_BASE_COPY]
        for path, module in canonical_named_modules(model)
        if _BASE_COPY in module.__dict__
    }


def _adapted(model: nn.Module) -> list[tuple[str, LoRAMixin]]:
    seen: set[int] = set()
    found: list[tuple[str, LoRAMixin]] = []
    for path, module in canonical_named_modules(model):
        if isinstance(module, LoRAMixin) and id(module) not in seen:
            seen.add(id(module))
            found.append((path, module))
    foreign = {name: record for name, record in adapters_of(model).items() if record.method.method != "lora"}
    if foreign:
        names = ", ".join(f"{name} ({record.method.label})" for name, record in foreign.items())
        raise AdapterError(
            f"adapters of this method cannot be folded into the base: {names}",
            where="merge",
            possible="methods whose update is a change of the base weight, such as lora",
            fix="keep the adapter beside the base",
        )
    if not found:
        raise AdapterError(
            "the model has no adapter to merge",
            where="merge",
            possible="a model that frostline.prepare(model, peft=...) or load_adapter returned",
            fix="load the adapter first",
        )
    return found
