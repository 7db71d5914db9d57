"""What a selector is: one kind that finds modules or parameters, and modifiers that narrow it.

A kind is one file in `selectors/kinds` (or in another package that calls `register_kind`).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Protocol, Self, TypeVar, runtime_checkable

from frostline.config.origin import Origin
from frostline.errors import SelectorError
from frostline.selectors.matching import Selection, find_selection
from frostline.tree import ModuleTree


class OptionError(ValueError):
    """A fault of one of a kind's options, in plain words; `key` names the option."""

    def __init__(self, key: str, *words: str) -> None:
        super().__init__(*words)
        self.key = key


@runtime_checkable
class Kind(Protocol):
    """How one kind of selector finds its matches. Implementations are frozen dataclasses, comparable and printable.

    Attributes:
        key: the key in a mapping (`glob` in `{glob: "*.encoder"}`).
        selects: `"modules"` (with their subtrees) or `"params"`.
        options: further keys that belong to this kind (`of` of `layers`).
    """

    key: ClassVar[str]
    selects: ClassVar[str]
    options: ClassVar[tuple[str, ...]]

    @classmethod
    def parse(cls, value: Any, options: Mapping[str, Any]) -> Self:
        """Build from the config value. Raises ValueError with the reason in plain words."""
        ...

    def find(self, tree: ModuleTree, scope: bytearray | None) -> list[int]:
        """Indices of the matching modules (or parameters) of `tree`, adapters excluded for modules.

        `scope` masks the modules that `within` leaves. Raises LookupError with the reason in plain words
        (`NothingFound` where the model simply has no such part).
        """
        ...

    @property
    def pattern(self) -> str:
        """The value as text, for suggestions."""
        ...


@dataclass(frozen=True)
class Selector:
    """One parsed selector. Equality ignores where it was written.

    Attributes:
        kind: finds the matches.
        within: only matches inside the subtrees that this one selects.
        excepts: what these select is taken away again.
        optional: matching nothing is not an error.
        conditional: what it selects may stay without a gradient in single steps.
        frozen_mode: `eval` or `train` for what it freezes; None is that of the block.
        origin: file, line and key that it came from.
    """

    kind: Kind
    within: Selector | None = None
    excepts: tuple[Selector, ...] = ()
    optional: bool = False
    conditional: bool = False
    frozen_mode: str | None = None
    origin: Origin = field(default_factory=Origin, compare=False)

    @property
    def selects_params(self) -> bool:
        """Whether it selects single parameters instead of modules with their subtrees."""
        return self.kind.selects == "params"

    @property
    def has_rows(self) -> bool:
        """Whether it selects only some rows of the parameters that it matches."""
        return getattr(self.kind, "rows", None) is not None

    def rows_of(self, path: str, shape: tuple[int, ...]) -> list[int]:
        """The rows that it selects of a parameter that it matches; only where `has_rows`.

        Raises:
            SelectorError: the parameter has no such rows.
        """
        kind: Any = self.kind
        try:
            return kind.rows_of(path, shape)
        except LookupError as error:
            what, possible, fix = error.args
            raise SelectorError(
                f"{self} cannot be applied to this model: {what}", where=self.origin, possible=possible, fix=fix
            ) from None

    def select(self, tree: ModuleTree) -> Selection:
        """Apply to `tree`; an empty result is for the caller to judge (`require_matches`)."""
        return find_selection(self, tree)

    def __str__(self) -> str:
        text = str(self.kind)
        if self.within is not None:
            text += f" within {self.within}"
        if self.excepts:
            text += " except " + ", ".join(str(selector) for selector in self.excepts)
        return text


_KINDS: dict[str, type[Kind]] = {}
_K = TypeVar("_K", bound=type[Kind])


def register_kind(kind: _K) -> _K:
    """Class decorator: make `kind` available under its `key`."""
    _KINDS[kind.key] = kind
    return kind


@cache
def _load_own_kinds() -> None:
    package = importlib.import_module("frostline.selectors.kinds")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")


def known_kinds() -> Mapping[str, type[Kind]]:
    """Key -> kind, our own first; third-party ones as far as they have been imported."""
    _load_own_kinds()
    return _KINDS
