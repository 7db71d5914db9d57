"""`PEFT`, the abstract base of every method, and the registry of methods.

A method is a frozen config plus `transform(module, name, prefix)`. A new one is one file in `adapters/methods`, or in
another package behind an entry point of the group `frostline.methods`.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import Any, ClassVar, Self, TypeVar

from torch import nn

from frostline.config.origin import Origins
from frostline.errors import ArgumentError, ConfigError, Problem
from frostline.tree import ModuleTree, PlannedParam, set_trainable

ALL_LINEAR = "all-linear"
DEFAULT_NAME = "default"


class PEFT(ABC):
    """A parameter-efficient fine-tuning method: what it adds to a module, and to which modules.

    Calling it on a model freezes the base and adapts the targets in place; `frostline.prepare` does the same with a
    plan. Subclasses are frozen dataclasses.

    Attributes:
        method: name in the config (`peft.method`).
        target_modules: selectors in the grammar of the config, or `all-linear`.
        exclude_modules: selectors whose matches are never adapted; always wins.
        aliases: what other libraries call a field -> its name, for configs and messages.
    """

    method: ClassVar[str]
    aliases: ClassVar[Mapping[str, str]] = {}
    target_modules: Any
    exclude_modules: Any

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Refuse unknown keywords before a dataclass does, whose words say nothing of what was possible."""
        del args
        if options:
            _refuse_unknown(cls, options)
        return super().__new__(cls)

    @abstractmethod
    def transform(
        self, module: nn.Module, name: str | None = None, prefix: str | None = None, *, adapter: str = DEFAULT_NAME
    ) -> nn.Module:
        """Add this method's adapter to `module` and return it (the same object where it can be adapted in place).

        Args:
            module: a module that `supports` accepts.
            name: its name in the parent; `prefix`: the parent's path. Together they seed the initial values.
            adapter: name of the adapter.
        """

    @abstractmethod
    def supports(self, module: nn.Module) -> bool:
        """Whether `transform` can adapt this module."""

    @abstractmethod
    def planned(self, module: nn.Module, *, adapter: str = DEFAULT_NAME) -> Sequence[PlannedParam]:
        """The parameters that `transform` would add below `module`, without doing it."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Short text for the plan, such as `LoRA r8`."""

    @property
    def supported_kinds(self) -> str:
        """The kinds of layer that `supports` accepts, in words, for messages."""
        return "nn.Linear and its subclasses"

    def remark(self, module: nn.Module) -> str:
        """What the reader of a plan should know about adapting this module; empty for most."""
        del module
        return ""

    @abstractmethod
    def to_config(self) -> dict[str, Any]:
        """JSON-able config from which `from_config` builds an equal method."""

    def resolved(self) -> dict[str, Any]:
        """`to_config` with every default that only the method knows filled in. Override where None stands for one."""
        return self.to_config()

    @classmethod
    @abstractmethod
    def from_config(cls, config: Mapping[str, Any], origins: Origins | None = None) -> Self:
        """Build from a `peft` block, whose keys and values nobody else checks (but for the shape of the selectors).

        Raises:
            ConfigError: with all faults at once, each `where=origins.at(KEY)`; unknown keys are faults too.
        """

    def seeded(self, seed: int) -> Self:
        """This method with its initial values drawn from `seed`; itself where it draws none (has no field `seed`)."""
        method: Any = self
        draws = any(field.name == "seed" for field in dataclasses.fields(method))
        return dataclasses.replace(method, seed=seed) if draws else self

    def freeze_model(self, model: nn.Module) -> None:
        """Freeze every parameter of the base; adapters keep their flags. Override to freeze less."""
        for ref in ModuleTree.from_model(model).params:
            if ref.param is not None and not ref.is_adapter:
                set_trainable(ref.param, False)

    def __call__(self, model: nn.Module | Iterable[nn.Module]) -> Any:
        """Adapt the targets of `model` (or of each chunk of a list) in place and freeze its base; returns `model`.

        A chunk that is refused keeps its flags; those before it in the list are adapted by then.

        Raises:
            AdapterError: a target cannot be adapted. SelectorError: a selector matches nothing.
        """
        # Deferred: injection builds on this class.
        from frostline.adapters.injection import inject

        chunks = [model] if isinstance(model, nn.Module) else list(model)
        for chunk in chunks:
            inject(chunk, self)
            self.freeze_model(chunk)
        return model


def _refuse_unknown(cls: type[PEFT], options: Iterable[str]) -> None:
    params = inspect.signature(cls.__init__).parameters
    if any(param.kind is param.VAR_KEYWORD for param in params.values()):
        return
    names = [name for name in params if name != "self"]
    problems: list[Problem] = []
    for option in options:
        if option not in names:
            near = cls.aliases.get(option) or next(iter(difflib.get_close_matches(option, names, n=1)), None)
            problems.append(
                Problem(
                    f"{cls.__name__} takes no argument `{option}`",
                    f"{cls.__name__}({option}=...)",
                    "arguments: " + ", ".join(names),
                    f"write `{near}`" if near else "remove it",
                )
            )
    if problems:
        raise ArgumentError.from_problems(problems)


_METHODS: dict[str, type[PEFT]] = {}
_M = TypeVar("_M", bound=type[PEFT])


def differences_of(first: PEFT, second: PEFT) -> list[tuple[str, Any, Any]]:
    """The settings in which two adapters compute differently: name, value in `first`, value in `second`; sorted.

    Where they are injected is compared as resolved (in the plan), and initial values are no part of what an adapter is.
    """
    mine, theirs = first.resolved(), second.resolved()
    free = {"target_modules", "exclude_modules", "seed", "dtype"}
    return [
        (key, mine.get(key), theirs.get(key))
        for key in sorted({*mine, *theirs} - free)
        if mine.get(key) != theirs.get(key)
    ]


def register_method(cls: _M) -> _M:
    """Class decorator: make a method available under its `method` name."""
    _METHODS[cls.method] = cls
    return cls


@cache
def _load_methods() -> None:
    package = importlib.import_module("frostline.adapters.methods")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    for point in entry_points(group="frostline.methods"):
        register_method(point.load())


def method_names() -> list[str]:
    """Names that `peft.method` may have."""
    _load_methods()
    return sorted(_METHODS)


def parse_method(config: Mapping[str, Any], origins: Origins | None = None) -> PEFT:
    """The method of a `peft` block.

    Raises:
        ConfigError: unknown method, or faults in its keys.
    """
    origins = origins or Origins(prefix=("peft",))
    name = config.get("method", "lora")
    if name not in method_names():
        raise ConfigError(
            f"peft.method is {name!r}",
            where=origins.at("method"),
            possible="methods: " + ", ".join(method_names()),
            fix="choose one of these, or install the package that adds it",
        )
    return _METHODS[name].from_config(config, origins)
