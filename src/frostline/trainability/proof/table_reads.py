"""Does the model read a table past the module that lays trained rows over it?

Some models multiply by `embed.weight` themselves: there the rows would do nothing, and no gradient tells, because the
look-up gives one. So all that one forward pass computes with such a table is watched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from frostline.errors import TrainingError
from frostline.tree import ModuleTree, unwrap, wrapped_child

# They make a tensor like the table, or ask what it is like, and read no value.
_ONLY_LOOK = ("new_", "is_")
_LIKE = "_like"
_TAKE_AFTER = ("to", "type_as", "expand_as", "view_as", "reshape_as")  # of another tensor: `x.to(table)`


class TableReads:
    """Watches the first forward pass of `model`; costs nothing afterwards, or where no table has trained rows."""

    def __init__(self, model: nn.Module) -> None:
        tree = ModuleTree.from_model(model)
        owners = [tree.modules[ref.owner].module for ref in tree.params if ref.is_rows]
        paths = {ref.owner: ref.path.rpartition(".")[0] for ref in tree.params if ref.is_rows}
        self._tables = {id(tree.modules[owner].module._parameters.get("weight")): path for owner, path in paths.items()}
        self._depth = 0  # how many of the modules that own a table are computing
        self._found: dict[str, str] = {}
        self._mode: TorchFunctionMode | None = None
        self._hooks: list[RemovableHandle] = []
        if owners and not _is_compiled(model):  # within a compiled graph nothing can be watched
            root = unwrap(model)
            self._hooks = [
                root.register_forward_pre_hook(self._begin),
                root.register_forward_hook(self._end, always_call=True),
            ]
            for owner in {id(module): module for module in owners}.values():
                self._hooks += [
                    owner.register_forward_pre_hook(self._enter),
                    owner.register_forward_hook(self._leave, always_call=True),
                ]

    def require_none(self) -> None:
        """Stop watching.

        Raises:
            TrainingError: a table was read past its module.
        """
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if self._found:
            names = ", ".join(f"{path}.weight" for path in self._found)
            reads = "\n".join(f"{path}.weight in {name}" for path, name in self._found.items())
            raise TrainingError(
                f"the model reads {names} itself, past the rows that train",
                where="the first training batch",
                possible=f"tables that only their own module reads; read here:\n{reads}",
                fix="train the whole table (without `rows`), or no part of it",
            )

    def _begin(self, module: nn.Module, args: Any) -> None:
        del module, args
        if self._mode is None:
            self._mode = _Watch(self._look)
            self._mode.__enter__()

    def _end(self, module: nn.Module, args: Any, result: Any) -> None:
        del module, args, result
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
            self._mode = None

    def _enter(self, module: nn.Module, args: Any) -> None:
        del module, args
        self._depth += 1

    def _leave(self, module: nn.Module, args: Any, result: Any) -> None:
        del module, args, result
        self._depth -= 1

    def _look(self, function: Callable[..., Any], values: Iterable[Any]) -> None:
        if self._depth:
            return
        name = getattr(function, "__name__", str(function))
        if name.startswith(_ONLY_LOOK) or name.endswith(_LIKE):
            return
        for place, value in enumerate(_flat(values)):
            if id(value) in self._tables and not (place and name in _TAKE_AFTER):
                self._found.setdefault(self._tables[id(value)], name)


class _Watch(TorchFunctionMode):
    """Shows every call that torch makes, before it is made."""

    def __init__(self, look: Callable[[Callable[..., Any], Iterable[Any]], None]) -> None:
        super().__init__()
        self._look = look

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        if any(isinstance(value, torch.Tensor) for value in _flat((result,))):  # else it asked for a size, a dtype
            self._look(func, (*args, *(kwargs or {}).values()))
        return result


def _flat(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, tuple | list):
            yield from value  # pyright: ignore[reportUnknownVariableType]
        else:
            yield value


def _is_compiled(model: nn.Module) -> bool:
    module: nn.Module | None = model
    while module is not None:
        if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
            return True
        child = wrapped_child(module)
        module = module._modules[child] if child is not None else None
    return False
