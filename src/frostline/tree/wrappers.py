"""Which modules are transparent wrappers, and which belong to an adapter.

A wrapper adds a component to every path below it (`module.`, `_orig_mod.`) that no user wrote. It is recognized by its
type, never by the text of a path: a model may well have a child that is honestly called `module`.
"""

from __future__ import annotations

from functools import cache

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel


class AdapterPart:
    """Marks a module whose whole subtree is adapter internals: module selectors never match it."""


def wrapped_child(module: nn.Module) -> str | None:
    """Name of the child that `module` merely wraps, or None where `module` is an ordinary module.

    A class may declare it itself with an attribute `frostline_wrapped_child`.
    """
    name = _wrapped_name(type(module))
    return name if name is not None and module._modules.get(name) is not None else None


@cache
def may_wrap(cls: type[nn.Module]) -> bool:
    """Whether `wrapped_child` can name a child for a module of this class."""
    return _wrapped_name(cls) is not None


@cache
def _wrapped_name(cls: type[nn.Module]) -> str | None:
    if issubclass(cls, (DistributedDataParallel, DataParallel)):
        return "module"
    # By name of class, because importing torch._dynamo or the checkpoint wrapper only to look costs a second.
    names = {base.__name__ for base in cls.__mro__}
    if "OptimizedModule" in names:
        return "_orig_mod"
    if "ActivationWrapper" in names:
        return "_checkpoint_wrapped_module"
    declared = getattr(cls, "frostline_wrapped_child", None)
    return declared if isinstance(declared, str) else None


def model_class(module: nn.Module) -> type[nn.Module]:
    """The class that the model's author wrote, below wrappers and below what adapters or `fully_shard` made of it."""
    while (child := wrapped_child(module)) is not None:
        module = module._modules[child]  # type: ignore[assignment]
    return _written_class(type(module))


@cache
def _written_class(cls: type[nn.Module]) -> type[nn.Module]:
    adapted = cls.__dict__.get("frostline_base_class")
    if adapted is not None:
        return _written_class(adapted)
    # `class FSDPBlock(FSDPModule, Block)` and `class ParametrizedLinear(Linear)`, which torch makes on the fly.
    bases = cls.__bases__
    if len(bases) == 2 and bases[0].__name__ in ("FSDPModule", "ReplicateModule"):
        return _written_class(bases[1])
    if len(bases) == 1 and cls.__name__ == f"Parametrized{bases[0].__name__}":
        return _written_class(bases[0])
    return cls
