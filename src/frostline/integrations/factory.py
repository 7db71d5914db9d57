"""Models that the user's own code builds: `model.factory: "module:callable"`.

The callable is called under the meta device for a plan, where nothing is allocated, and for real for a run. Any
`nn.Module` will do here; what a recipe needs of it is for the recipe. Knows nothing of freezing, adapters or data.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from frostline.config.origin import Origin
from frostline.config.wording import nearest
from frostline.errors import ModelError
from frostline.integrations.hf_models.build import MetaModel
from frostline.integrations.hf_models.load import LoadedModel
from frostline.integrations.hf_models.no_values import MetaWithoutValues
from frostline.tree import collector_paused, read_model

REMARK = "the model comes from a factory: there are no base files, so that no parameter counts as new"


@dataclass(frozen=True)
class Factory:
    """What the config says of a factory.

    Attributes:
        name: `module:callable`; the module is imported from the current directory or from what is installed.
        arguments: keyword arguments of the call.
        dtype: to which floating-point parameters and buffers are converted; `auto` leaves them as built.
        seed: torch's random state for the call, which is put back behind it.
        origin: where the config names it, for messages.
    """

    name: str
    arguments: Mapping[str, Any]
    dtype: str
    seed: int
    origin: Origin

    def build_meta(self) -> MetaModel:
        """The model without values.

        Raises:
            ModelError: the callable is not there, fails, or returns something else than a module.
        """
        function = self._find()
        with MetaWithoutValues(), collector_paused():
            model = self._call(function)
        return MetaModel(model, frozenset(), {}, (), _main_dtype(model), remarks=(REMARK,))

    def load(self) -> LoadedModel:
        """The model with its values, in eval mode.

        Raises:
            ModelError: as `build_meta`; or a tensor has no values.
        """
        model = self._call(self._find())
        empty = [name for name, tensor in [*model.named_parameters(), *model.named_buffers()] if tensor.is_meta]
        if empty:
            raise ModelError(
                f"{len(empty)} tensors of the model that {self.name} returns have no values: {', '.join(empty[:5])}",
                where=self.origin,
                possible="tensors on a real device; Frostline itself calls the factory on the meta device for a plan",
                fix="build on the device in force, without naming `meta`, and load the weights there",
            )
        return LoadedModel(model.eval(), frozenset(), [], [REMARK], _main_dtype(model))

    def _find(self) -> Callable[..., Any]:
        module_name, _, attribute = self.name.partition(":")
        with _current_directory_first(), _own_failures(self, f"module {module_name!r} cannot be imported"):
            try:
                found: Any = importlib.import_module(module_name)
            except ModuleNotFoundError as error:
                missing = error.name or ""
                if missing != module_name and not module_name.startswith(f"{missing}."):
                    raise  # another one, which this one imports
                raise ModelError(
                    f"model.factory: there is no module {missing!r}",
                    where=self.origin,
                    possible=f"modules in the current directory, {os.getcwd()}, and installed ones",
                    fix="correct the name, or run the command in the folder that holds the module",
                ) from None
        for part in attribute.split("."):
            if not hasattr(found, part):
                names = [name for name in dir(found) if not name.startswith("_") and callable(getattr(found, name))]
                near = nearest(part, names)
                first = f"nearest: {near}; " if near else ""
                raise ModelError(
                    f"model.factory: {getattr(found, '__name__', module_name)} has no {part!r}",
                    where=self.origin,
                    possible=f"{first}callables there: {', '.join(names[:8]) or 'none'}",
                    fix="correct the name behind the colon",
                )
            found = getattr(found, part)
        if not callable(found):
            raise ModelError(
                f"model.factory: {self.name} is {type(found).__name__}, which cannot be called",
                where=self.origin,
                possible="a function or a class that returns an nn.Module",
                fix="name the function that builds the model",
            )
        return found

    def _call(self, function: Callable[..., Any]) -> nn.Module:
        # The seed is that of the run: a factory that draws its weights gives the same ones at every start and resume.
        with (
            _current_directory_first(),
            torch.random.fork_rng(devices=[]),
            _own_failures(self, f"model.factory: {self.name} failed"),
        ):
            torch.manual_seed(self.seed)
            model = function(**self.arguments)
        if not isinstance(model, nn.Module):
            raise ModelError(
                f"model.factory: {self.name} returns {type(model).__name__}",
                where=self.origin,
                possible="an nn.Module",
                fix="return the model itself",
            )
        return model if self.dtype == "auto" else model.to(getattr(torch, self.dtype))


@contextmanager
def _current_directory_first() -> Iterator[None]:
    """As with `python -m`; the installed command does not have it on its path."""
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


@contextmanager
def _own_failures(factory: Factory, what: str) -> Iterator[None]:
    """Whatever the user's code raises, with its last line and place."""
    try:
        yield
    except ModelError:
        raise
    except (Exception, SystemExit) as error:  # a factory that leaves the program would end it without a word
        line = traceback.format_exception_only(error)[-1].strip()
        raise ModelError(
            f"{what}: {line}",
            where=factory.origin,
            possible=_place(error),
            fix="correct that code or model.factory_arguments; --debug shows the whole traceback",
        ) from error


def _place(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"raised in {error.filename}, line {error.lineno}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    if last.filename == __file__ and isinstance(error, TypeError):  # it was never entered
        return "other arguments: model.factory_arguments are given to it by name"
    return f"raised in {last.filename}, line {last.lineno}, in {last.name}"


def _main_dtype(model: nn.Module) -> torch.dtype:
    """The dtype that most elements have; float32 for a model without floating-point parameters."""
    params = {id(param): param for param in read_model(model)[1].values() if param.is_floating_point()}.values()
    dtypes = dict.fromkeys(param.dtype for param in params)  # in the order of the model, where two are as frequent
    if len(dtypes) == 1:
        return dtypes.popitem()[0]
    counts = {dtype: sum(param.numel() for param in params if param.dtype == dtype) for dtype in dtypes}
    return max(counts, key=lambda dtype: counts[dtype], default=torch.float32)
