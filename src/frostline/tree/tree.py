"""A model as flat arrays in definition order, so that a subtree is a contiguous range.

`ModuleTree` is built once and read by selectors, plans and adapters. Modules stand in preorder: the subtree of module
`i` is `modules[i:modules[i].end]`, and its parameters are `params[param_start:param_end]`. It holds references to the
live modules but never changes them; values are never read, so the meta device works.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import count
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import Parameter
from torch.nn.parameter import is_lazy

from frostline.errors import ModelError
from frostline.tree.local import stored_dtype
from frostline.tree.walk import contains_itself, join_path, unwrap
from frostline.tree.wrappers import TRAINED_ROWS, AdapterPart, HoldsTrainedRows, may_wrap, model_class
from frostline.tree.wrapping import parameters_at_rest


@dataclass(slots=True)
class ModuleRef:
    """One module at one path.

    Attributes:
        path: canonical path; the root's is `""`.
        module: the live module (unwrapped).
        parent: index of the parent, -1 for the root.
        is_adapter: the module is part of an adapter.
        end: index behind the last module of the subtree.
        param_start, own_param_end, param_end: own parameters are `[param_start, own_param_end)`, those of the subtree
            `[param_start, param_end)`.
    """

    path: str
    module: nn.Module
    parent: int
    is_adapter: bool
    end: int = 0
    param_start: int = 0
    own_param_end: int = 0
    param_end: int = 0

    @property
    def name(self) -> str:
        """Last component of the path."""
        return self.path.rpartition(".")[2]


@dataclass(slots=True)
class ParamRef:
    """One parameter under one name. `param` is None for an adapter parameter that is planned but not injected yet.

    `shape` is the global one of a sharded tensor, `dtype` that of the numbers which are really stored.
    """

    path: str
    owner: int
    param: Parameter | None
    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
    is_adapter: bool

    @property
    def is_rows(self) -> bool:
        """Whether it holds trained rows, which are laid over the frozen weight beside it."""
        return self.is_adapter and self.path.rpartition(".")[2] == TRAINED_ROWS

    @property
    def num_elements(self) -> int:
        """Number of elements at the global shape."""
        return math.prod(self.shape)

    @property
    def dtype_name(self) -> str:
        """Name of the dtype, such as `float32`."""
        return _dtype_name(self.dtype)


class PlannedParam(NamedTuple):
    """An adapter parameter that injection will create: path below its base module, shape and dtype."""

    suffix: str
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class BufferRef:
    """One buffer: canonical path, owning module's index, tensor, and whether a state dict holds it."""

    path: str
    owner: int
    tensor: torch.Tensor
    persistent: bool


@dataclass
class ModuleTree:
    """The arrays. Build with `from_model`."""

    modules: list[ModuleRef] = field(default_factory=list[ModuleRef])
    params: list[ParamRef] = field(default_factory=list[ParamRef])

    @classmethod
    def from_model(cls, model: nn.Module) -> ModuleTree:
        """Read the structure of `model` (wrappers stripped). Linear in the number of modules; mutates nothing.

        Raises:
            ModelError: a module contains itself, two have one path, or a parameter has no shape yet.
        """
        tree = cls()
        modules, params = tree.modules, tree.params
        _read(model, "", -1, False, modules, params, parameters_at_rest(model), set())
        if len(tree.module_index) < len(modules):
            raise _ambiguous(modules)
        return tree

    def with_planned_params(self, additions: Mapping[int, Iterable[PlannedParam]]) -> ModuleTree:
        """A copy in which each base module (by index) also owns the adapter parameters that injection will give it."""
        tree = ModuleTree()
        for index, ref in enumerate(self.modules):
            start = len(tree.params)
            tree.params.extend(self.params[ref.param_start : ref.own_param_end])
            tree.params.extend(
                ParamRef(join_path(ref.path, new.suffix), index, None, new.shape, new.dtype, True, True)
                for new in additions.get(index, ())
            )
            tree.modules.append(
                ModuleRef(ref.path, ref.module, ref.parent, ref.is_adapter, ref.end, start, len(tree.params))
            )
        for ref in tree.modules:
            is_last = ref.end == len(tree.modules)
            ref.param_end = len(tree.params) if is_last else tree.modules[ref.end].param_start
        return tree

    @cached_property
    def has_rows(self) -> bool:
        """Whether single rows of a table train beside it."""
        return any(ref.is_adapter and ref.is_rows for ref in self.params)

    def without_rows(self) -> ModuleTree:
        """This tree as it is without trained rows; itself where it has none."""
        if not self.has_rows:
            return self
        tree = ModuleTree()
        for ref in self.modules:
            start = len(tree.params)
            own = self.params[ref.param_start : ref.own_param_end]
            tree.params.extend(param for param in own if not param.is_rows)
            tree.modules.append(replace(ref, param_start=start, own_param_end=len(tree.params)))
        for ref in tree.modules:
            is_last = ref.end == len(tree.modules)
            ref.param_end = len(tree.params) if is_last else tree.modules[ref.end].param_start
        return tree

    @cached_property
    def module_index(self) -> Mapping[str, int]:
        """Path -> index of the module."""
        return dict(zip(map(_path_of, self.modules), count()))

    @cached_property
    def modules_named(self) -> Mapping[str, Sequence[int]]:
        """Last component of a path -> indices of the modules that have it, without the parts of adapters."""
        found: dict[str, list[int]] = {}
        for index, ref in enumerate(self.modules):
            if not ref.is_adapter:
                name = ref.path.rpartition(".")[2]
                if name in found:
                    found[name].append(index)
                else:
                    found[name] = [index]
        return found

    @cached_property
    def param_index(self) -> Mapping[str, int]:
        """Path -> index of the parameter."""
        return dict(zip(map(_path_of, self.params), count()))

    @cached_property
    def adapter_params(self) -> Sequence[int]:
        """Indices of the parameters that belong to adapters."""
        return [index for index, ref in enumerate(self.params) if ref.is_adapter]

    @cached_property
    def names_of_tensor(self) -> Mapping[int, tuple[int, ...]]:
        """First parameter index of a tensor -> indices of all its names; only tensors with several names."""
        ids = [id(ref.param) for ref in self.params if ref.param is not None]
        if len(set(ids)) == len(ids):
            return {}
        by_id: dict[int, list[int]] = {}
        for index, ref in enumerate(self.params):
            if ref.param is not None:
                by_id.setdefault(id(ref.param), []).append(index)
        return {indices[0]: tuple(indices) for indices in by_id.values() if len(indices) > 1}

    @cached_property
    def buffers(self) -> Sequence[BufferRef]:
        """All buffers, each tensor once."""
        seen: set[int] = set()
        found: list[BufferRef] = []
        for index, ref in enumerate(self.modules):
            for name, buffer in ref.module._buffers.items():
                if buffer is not None and id(buffer) not in seen:
                    seen.add(id(buffer))
                    persistent = name not in ref.module._non_persistent_buffers_set
                    found.append(BufferRef(join_path(ref.path, name), index, buffer, persistent))
        return found

    @cached_property
    def block_lists(self) -> Sequence[int]:
        """Indices of the outermost `nn.ModuleList`s whose children all share one class: the model's layer stacks."""
        found: list[int] = []
        index = 0
        while index < len(self.modules):
            ref = self.modules[index]
            children = list(ref.module._modules.values())
            is_stack = (
                isinstance(ref.module, nn.ModuleList)
                and not ref.is_adapter
                and bool(children)
                and len({model_class(child) for child in children if child is not None}) == 1
            )
            if is_stack:
                found.append(index)
            index = ref.end if is_stack else index + 1
        return found

    def children(self, index: int) -> list[int]:
        """Indices of the direct children of module `index`, in definition order."""
        found: list[int] = []
        child, end = index + 1, self.modules[index].end
        while child < end:
            found.append(child)
            child = self.modules[child].end
        return found


_path_of = attrgetter("path")


@cache
def _marks(cls: type[nn.Module]) -> tuple[bool, bool]:
    """Whether a module of this class is part of an adapter, and whether it may hold trained rows."""
    return issubclass(cls, AdapterPart), issubclass(cls, HoldsTrainedRows)


@cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _read(
    module: nn.Module,
    path: str,
    parent: int,
    inside_adapter: bool,
    modules: list[ModuleRef],
    params: list[ParamRef],
    at_rest: Mapping[int, Parameter],
    above: set[int],
) -> None:
    """Append `module` and what is below it; `above` are the identities of its ancestors."""
    if may_wrap(type(module)):
        module = unwrap(module)
    if id(module) in above:
        raise contains_itself(path, module)
    index, start = len(modules), len(params)
    holds_adapter, holds_rows = _marks(type(module))
    is_adapter = holds_adapter or inside_adapter
    prefix = path + "." if path else ""
    for name, param in module._parameters.items():
        if param is None:
            continue
        if at_rest:
            param = at_rest.get(id(param), param)
        if type(param) is Parameter:  # nearly all: nothing to look for
            dtype = param.dtype
        elif is_lazy(param):
            raise _uninitialized(prefix + name, module)
        else:
            dtype = stored_dtype(param)
        added = is_adapter or (holds_rows and name == TRAINED_ROWS)
        params.append(ParamRef(prefix + name, index, param, tuple(param.shape), dtype, param.requires_grad, added))
    end = len(params)
    ref = ModuleRef(path, module, parent, is_adapter, index + 1, start, end, end)
    modules.append(ref)
    if module._modules:
        above.add(id(module))
        for name, child in module._modules.items():
            if child is not None:
                _read(child, prefix + name, index, is_adapter, modules, params, at_rest, above)
        above.discard(id(module))
        ref.end, ref.param_end = len(modules), len(params)


def _uninitialized(path: str, module: nn.Module) -> ModelError:
    return ModelError(
        f"{path} has no shape yet ({type(module).__name__} takes it from its first input)",
        where="the model",
        possible="parameters whose shapes are known",
        fix="run one batch through the model first, or write the layer with its input size",
    )


def _ambiguous(modules: Sequence[ModuleRef]) -> ModelError:
    num_modules: dict[str, int] = {}
    for ref in modules:
        num_modules[ref.path] = num_modules.get(ref.path, 0) + 1
    path = next(path for path, count in num_modules.items() if count > 1)
    return ModelError(
        f"{num_modules[path]} modules have the path {path!r}: a name with a dot in it reads like a path",
        where="the model",
        possible="one module for each path; torch's add_module takes no dots either",
        fix="rename the child whose name holds a dot",
    )
