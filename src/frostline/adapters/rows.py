"""Trained rows of a model: laid over tables, looked at, folded in, taken away. The maths is in `layers`.

A tied weight has one parameter of trained rows, which every module that shares the weight holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from frostline.adapters.layers.in_place import InPlaceAdapted
from frostline.adapters.layers.trained_rows import TrainedRows, lay, lift, rows_mixin
from frostline.adapters.weight_readers import reader_of
from frostline.config.origin import Origin
from frostline.config.wording import shorten_names
from frostline.errors import AdapterError, Problem
from frostline.tree import (
    TRAINED_ROWS,
    ModuleTree,
    canonical_named_modules,
    join_path,
    update_dtype,
)

_POSSIBLE = "the weight of an nn.Embedding or of an nn.Linear (an output head), in floating point"


@dataclass(frozen=True)
class LaidRows:
    """The trained rows of one weight.

    Attributes:
        modules: the modules that share it, by path, in the model's order.
        rows: indices along dim 0 of the weight, sorted.
        values: the parameter, `[len(rows), dim]`.
    """

    modules: Mapping[str, nn.Module]
    rows: tuple[int, ...]
    values: nn.Parameter

    @property
    def path(self) -> str:
        """Canonical path of the parameter under its first name."""
        return join_path(next(iter(self.modules)), TRAINED_ROWS)

    @property
    def unique_modules(self) -> list[TrainedRows]:
        """Each module once, whatever number of paths lead to it."""
        return [cast("TrainedRows", module) for module in {id(m): m for m in self.modules.values()}.values()]

    @property
    def weight(self) -> Tensor:
        """The frozen table."""
        return cast("TrainedRows", next(iter(self.modules.values()))).weight


def rows_of(model: nn.Module) -> Mapping[str, LaidRows]:
    """Trained rows of `model` by the path of their parameter (its first name); empty for most models."""
    found: dict[int, tuple[dict[str, nn.Module], TrainedRows]] = {}
    for path, module in canonical_named_modules(model):
        if isinstance(module, TrainedRows):
            found.setdefault(id(module.trained_rows), ({}, module))[0][path] = module
    laid = [LaidRows(modules, first.frostline_rows, first.trained_rows) for modules, first in found.values()]
    return {entry.path: entry for entry in laid}


def lay_rows(model: nn.Module, wanted: Mapping[str, tuple[int, ...]]) -> None:
    """Lay trained rows over weights of `model`, with the values that the weights have. Mutates `model`, sets no flag.

    Args:
        wanted: rows by path of the parameter to make (`<module>.trained_rows`); `refuse_unsupported` has seen them.
    """
    tree = ModuleTree.from_model(model)
    done: list[nn.Module] = []
    try:
        for path, rows in wanted.items():
            owner = path.rpartition(".")[0]
            weight = tree.params[tree.param_index[join_path(owner, "weight")]].param
            assert weight is not None
            values = weight.detach()[torch.tensor(rows, device=weight.device)].to(update_dtype(weight.dtype))
            parameter = nn.Parameter(values)
            for ref in tree.modules:
                if ref.module._parameters.get("weight") is weight and ref.module not in done:
                    lay(ref.module, rows, parameter)
                    done.append(ref.module)
    except BaseException:
        for module in done:
            lift(module)
        raise


def refuse_unsupported(tree: ModuleTree, named: Iterable[tuple[int, Origin, str]]) -> None:
    """Raise where rows of a parameter cannot train apart from the others.

    Args:
        named: index of the parameter, place and words of the selector.

    Raises:
        AdapterError: one problem for each selector and reason; it names the first parameters.
    """
    paths: dict[tuple[str, str, str, str], list[str]] = {}
    for index, origin, words in named:
        found = _obstacle(tree, index)
        if found is not None:
            paths.setdefault((words, str(origin), *found), []).append(tree.params[index].path)
    problems = [
        Problem(f"{words}: rows of {shorten_names(found, 2)} cannot train apart: {what}", where, _POSSIBLE, fix)
        for (words, where, what, fix), found in paths.items()
    ]
    if problems:
        raise AdapterError.from_problems(problems)


def remove_rows(model: nn.Module) -> None:
    """Take trained rows away; the tables stay as they are."""
    for entry in rows_of(model).values():
        for module in entry.unique_modules:
            lift(cast("nn.Module", module))


def with_rows(entry: LaidRows) -> Tensor:
    """The table with its trained rows in it: a new tensor in the dtype of the table."""
    weight = entry.weight.detach()
    index = torch.tensor(entry.rows, device=weight.device)
    return weight.index_copy(0, index, entry.values.detach().to(weight.dtype))


def _obstacle(tree: ModuleTree, index: int) -> tuple[str, str] | None:
    """Why rows of parameter `index` cannot train apart, and what to do; None if they can."""
    ref = tree.params[index]
    owner = tree.modules[ref.owner]
    module, kind = owner.module, type(owner.module).__name__
    mixin = rows_mixin(module)
    whole = "select the whole parameter, without `rows`"
    if mixin is None or ref.path.rpartition(".")[2] != "weight":
        return f"it belongs to a {kind}" if mixin is None else f"it is no table of the {kind}", whole
    if not ref.dtype.is_floating_point or len(ref.shape) != 2:
        return f"its dtype is {ref.dtype_name} (quantized, or packed)", "load the model without quantization"
    if owner.is_adapter or ref.is_adapter:
        return "it is part of an adapter", whole
    if isinstance(module, InPlaceAdapted) and not isinstance(module, TrainedRows):
        return "its module carries an adapter", "leave the module out of target_modules"
    if reader := reader_of(tree, ref.owner):
        return f"{reader} reads it directly, so that trained rows would do nothing there", whole
    if "forward" in module.__dict__:
        return "the forward of its module is replaced on the instance (as by accelerate's hooks)", "prepare first"
    if isinstance(module, nn.Embedding) and module.max_norm is not None:
        return "max_norm changes the table while it is read", "build the embedding without max_norm"
    if isinstance(module, nn.Embedding) and module.scale_grad_by_freq:
        return "scale_grad_by_freq counts tokens over the whole table", "build the embedding without it"
    layer = nn.Embedding if isinstance(module, nn.Embedding) else nn.Linear
    if bypass := _forward_of_its_own(type(module), layer):
        return f"{bypass}.forward does not call {layer.__name__}'s, where they are laid over", whole
    held = module._parameters | module._buffers | module._modules
    if not isinstance(module, TrainedRows) and (TRAINED_ROWS in held or hasattr(type(module), TRAINED_ROWS)):
        return f"its module has a {TRAINED_ROWS} of its own", "rename it in the model"
    return None


def _forward_of_its_own(kind: type[nn.Module], layer: type[nn.Module]) -> str | None:
    """Name of the class between `kind` and `layer` whose forward does not go on to the next one by `super()`."""
    for base in kind.__mro__:
        if base is layer:
            return None
        forward = base.__dict__.get("forward")
        if forward is None or issubclass(base, TrainedRows):
            continue
        code = getattr(forward, "__code__", None)
        if code is None or "super" not in code.co_names or "forward" not in code.co_names:
            return base.__name__
    return None
