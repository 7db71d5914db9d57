"""Imports of a process that only plans: transformers' modelling code without the compiler and without DTensor.

Must not be used in a process that runs a model. transformers 5.24 imports `torch._dynamo` for three decorators and one
class, and `torch.distributed.tensor` wherever torch has distributed support: 1.1 of the 2.0 s that its modelling code
takes. Building a tree on the meta device calls none of it. Whatever else is asked of `torch._dynamo` is answered by the
real one, imported at that moment. Likewise `torch.nn.init` draws nothing on the meta device, but imports sympy for it.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_COMPILER = "torch._dynamo"
_WRAPPED_OPS = f"{_COMPILER}._trace_wrapped_higher_order_op"
_planning_only = False


def for_planning_only() -> None:
    """Says that this process will run no model: importing modelling code may leave out what only running needs."""
    global _planning_only
    _planning_only = True


@contextmanager
def light_imports() -> Iterator[None]:
    """Inside, after `for_planning_only`, transformers is imported as on a torch without distributed support.

    A stand-in for `torch._dynamo` is put up, unless that is there already, and stays. Without `for_planning_only`
    nothing is changed.
    """
    if not _planning_only:
        yield
        return
    import torch.distributed

    if _COMPILER not in sys.modules:
        _CompilerStandIn().put_up()
    is_available = torch.distributed.is_available
    torch.distributed.is_available = _not_available
    try:
        yield
    finally:
        if is_available is not _not_available:  # else another thread is inside, and puts it back
            torch.distributed.is_available = is_available


def _not_available() -> bool:
    return False


def _undecorated(function: Any = None, *arguments: Any, **keywords: Any) -> Any:
    """Each decorator only marks a function for a later compilation, which does not come."""
    del arguments, keywords
    return _undecorated if function is None else function


class _CompilerStandIn(ModuleType):
    """In the place of `torch._dynamo`, until something more than a decorator is asked of it."""

    def __init__(self) -> None:
        super().__init__(_COMPILER)
        self.__path__ = []
        self.assume_constant_result = self.allow_in_graph = self.disable = _undecorated
        self._wrapped_ops = ModuleType(_WRAPPED_OPS)
        self._wrapped_ops.TransformGetItemToIndex = self._transform  # type: ignore[attr-defined]
        self._finder = _RealSubmodules(self.make_way)

    def put_up(self) -> None:
        sys.modules[_COMPILER], sys.modules[_WRAPPED_OPS] = self, self._wrapped_ops
        sys.meta_path.insert(0, self._finder)

    def make_way(self) -> ModuleType:
        """The real module, from now on for everyone."""
        for name, stand_in in ((_COMPILER, self), (_WRAPPED_OPS, self._wrapped_ops)):
            if sys.modules.get(name) is stand_in:
                del sys.modules[name]
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        return importlib.import_module(_COMPILER)

    def _transform(self, *arguments: Any, **keywords: Any) -> Any:
        self.make_way()
        return importlib.import_module(_WRAPPED_OPS).TransformGetItemToIndex(*arguments, **keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for by the import system itself
            raise AttributeError(name)
        return getattr(self.make_way(), name)


class _RealSubmodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """`import torch._dynamo.config` while the stand-in is up: the real package comes, and its submodule with it."""

    def __init__(self, make_way: Callable[[], ModuleType]) -> None:
        self._make_way = make_way

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if not fullname.startswith(f"{_COMPILER}."):
            return None
        self._make_way()
        importlib.import_module(fullname)
        return importlib.machinery.ModuleSpec(fullname, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """It has run already."""
