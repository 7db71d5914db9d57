"""Walks over a model under canonical paths: wrapper components left out, the root at path `""`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn
from torch.nn import Parameter

from frostline.errors import ModelError
from frostline.tree.wrappers import may_wrap, wrapped_child
from frostline.tree.wrapping import parameters_at_rest


def join_path(prefix: str, name: str) -> str:
    """`("a.b", "c")` -> `a.b.c`; an empty side adds no dot."""
    return f"{prefix}.{name}" if prefix and name else prefix or name


def unwrap(module: nn.Module) -> nn.Module:
    """The innermost module below transparent wrappers (DDP, compile, activation checkpointing)."""
    while (child := wrapped_child(module)) is not None:
        module = module._modules[child]  # type: ignore[assignment]
    return module


def canonical_named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every `(path, module)` in definition order, parents first; a shared module comes once under each of its paths.

    Raises:
        ModelError: a module contains itself.
    """
    for path, module, _ in walk_modules(model):
        yield path, module


def walk_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module, int]]:
    """As `canonical_named_modules`, with the number of ancestors of each module."""
    model = unwrap(model)
    yield "", model, 0
    above = {id(model)}
    stack = [(model, "", iter(list(model._modules.items())))]
    while stack:
        parent, prefix, children = stack[-1]
        depth = len(stack)
        for name, child in children:
            if child is None:
                continue
            if may_wrap(type(child)):
                child = unwrap(child)
            path = prefix + name
            if id(child) in above:
                raise contains_itself(path, child)
            yield path, child, depth
            if child._modules:  # read after the caller has seen the module, who may have changed it
                above.add(id(child))
                stack.append((child, path + ".", iter(list(child._modules.items()))))
                break
        else:
            above.discard(id(parent))
            stack.pop()


def contains_itself(path: str, module: nn.Module) -> ModelError:
    """The error for a module that stands below itself."""
    return ModelError(
        f"module {path!r} ({type(module).__name__}) contains itself",
        where="the model",
        possible="a module tree without cycles",
        fix="keep the back reference outside the module tree, for example in a one-element list",
    )


def read_model(model: nn.Module) -> tuple[list[tuple[str, nn.Module]], dict[str, Parameter]]:
    """All canonical named modules, and all parameters by path (a tied one under each of its names), in one pass.

    What two of the walks here would give, in half the time: a large model does not fit into a processor's cache.
    """
    modules: list[tuple[str, nn.Module]] = []
    params: dict[str, Parameter] = {}
    _read(model, "", modules, params, parameters_at_rest(model), set())
    return modules, params


def _read(
    module: nn.Module,
    path: str,
    modules: list[tuple[str, nn.Module]],
    params: dict[str, Parameter],
    at_rest: Mapping[int, Parameter],
    above: set[int],
) -> None:
    """Append `module` and what is below it; `above` are the identities of its ancestors."""
    if may_wrap(type(module)):
        module = unwrap(module)
    if id(module) in above:
        raise contains_itself(path, module)
    modules.append((path, module))
    prefix = path + "." if path else ""
    for name, param in module._parameters.items():
        if param is not None:
            params[prefix + name] = at_rest.get(id(param), param) if at_rest else param
    if module._modules:
        above.add(id(module))
        for name, child in module._modules.items():
            if child is not None:
                _read(child, prefix + name, modules, params, at_rest, above)
        above.discard(id(module))


def canonical_named_parameters(model: nn.Module, *, unique: bool = False) -> Iterator[tuple[str, Parameter]]:
    """Every `(path, parameter)`; a tied parameter under each of its names, or with `unique` under the first only.

    Of a sharded model it is the parameter that the optimizer holds, also where a gathered one stands in for it.
    """
    seen: set[int] = set()
    at_rest = parameters_at_rest(model)
    for path, module in canonical_named_modules(model):
        for name, param in module._parameters.items():
            if param is None:
                continue
            if unique:
                if id(param) in seen:
                    continue
                seen.add(id(param))
            yield join_path(path, name), at_rest.get(id(param), param) if at_rest else param


def canonical_named_buffers(model: nn.Module, *, persistent_only: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Every `(path, buffer)`, each tensor once; with `persistent_only` those that a state dict holds."""
    seen: set[int] = set()
    for path, module in canonical_named_modules(model):
        for name, buffer in module._buffers.items():
            if buffer is None or id(buffer) in seen:
                continue
            if persistent_only and name in module._non_persistent_buffers_set:
                continue
            seen.add(id(buffer))
            yield join_path(path, name), buffer
