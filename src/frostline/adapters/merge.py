"""Folds adapters and trained rows into the base weights, and takes them out again exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from frostline.adapters.active import adapters_of, forget_adapter
from frostline.adapters.layers.in_place import drop_factors, restore_class
from frostline.adapters.layers.lora_linear import LoRAMixin
from frostline.adapters.rows import LaidRows, remove_rows, rows_of, with_rows
from frostline.errors import AdapterError
from frostline.tree import TRAINED_ROWS, canonical_named_modules, is_fully_sharded

_BASE_COPY = "_frostline_unmerged_weight"


def merge(model: nn.Module, *, keep: bool = False) -> nn.Module:
    """Add every adapter to its base weight, and write trained rows into their tables. Mutates and returns `model`.

    The sum is made in float32 (float64 beside float64), and sum and rows are rounded once to the dtype of the base.

    Args:
        keep: False removes the adapters and rows, and the model is plain again. True keeps them beside a copy of each
            base weight, so that `unmerge` restores the base bit for bit.

    Raises:
        AdapterError: the model has neither, its parameters are sharded, or a merged weight is not finite; nothing is
            changed then.
    """
    if is_fully_sharded(model):
        raise AdapterError(
            "the model is sharded by fully_shard, so that no process has the weights to merge",
            where="merge",
            possible="a model in one process",
            fix="gather the values (torch's get_model_state_dict with full_state_dict=True), load them in one process "
            "into a model that is prepared in the same way, and merge there",
        )
    tables = list(rows_of(model).values())
    adapted = _adapted(model, beside=tables)
    for entry in tables:
        if not bool(torch.isfinite(entry.values).all()):
            raise _not_finite(entry.path)
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
            raise _not_finite(f"{path}.weight")
        merged.append(total)
    for (_, module), total in zip(adapted, merged, strict=True):
        if keep and _BASE_COPY not in module.__dict__:
            module.__dict__[_BASE_COPY] = module.weight.detach().clone()
        with torch.no_grad():
            module.weight.copy_(total)
        module.frostline_merged = tuple(module.frostline_settings)
    for entry in tables:
        first = entry.unique_modules[0]
        if keep and _BASE_COPY not in first.__dict__:
            first.__dict__[_BASE_COPY] = entry.weight.detach().clone()
        with torch.no_grad():
            entry.weight.copy_(with_rows(entry))
        for module in entry.unique_modules:
            module.frostline_merged = (TRAINED_ROWS,)
    if not keep:
        if adapted:
            remove_adapters(model)
        for entry in tables:
            entry.unique_modules[0].__dict__.pop(_BASE_COPY, None)
        remove_rows(model)
    return model


def _not_finite(path: str) -> AdapterError:
    return AdapterError(
        f"merging gives values that are not finite in {path}",
        where="merge",
        possible="finite adapter and base weights",
        fix="inspect the adapter with `frostline inspect RUN --check`",
    )


def unmerge(model: nn.Module) -> nn.Module:
    """Restore the base weights after `merge(model, keep=True)`, bit for bit. Mutates and returns `model`.

    Raises:
        AdapterError: nothing is merged, or the model has no adapter.
    """
    tables = list(rows_of(model).values())
    adapted = _adapted(model, beside=tables)
    held = [*(module for _, module in adapted), *(entry.unique_modules[0] for entry in tables)]
    if not any(_BASE_COPY in module.__dict__ for module in held):
        raise AdapterError(
            "nothing is merged", where="unmerge", possible="a model after merge(model, keep=True)", fix="merge first"
        )
    for module in held:
        if _BASE_COPY in module.__dict__:  # an adapter may have been injected into others since
            with torch.no_grad():
                module.weight.copy_(module.__dict__.pop(_BASE_COPY))
            module.frostline_merged = ()
    for entry in tables:
        for module in entry.unique_modules:
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


def _adapted(model: nn.Module, *, beside: Sequence[LaidRows] = ()) -> list[tuple[str, LoRAMixin]]:
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
    if not found and not beside:
        raise AdapterError(
            "the model has no adapter and no trained rows to merge",
            where="merge",
            possible="a model with adapters or trained rows, from frostline.prepare or load_adapter",
            fix="load the adapter first",
        )
    return found
