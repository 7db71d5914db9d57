"""Every error that Frostline raises on purpose, and the four-part message that each carries.

    FrostlineError
    ├── ConfigError          (ValueError)    a config file, an override or an argument is wrong
    │   ├── SelectorError    (LookupError)   a selector is malformed, matches nothing, or contradicts another
    │   └── ArgumentError    (TypeError)     a call in Python has a keyword that the class does not take
    ├── ModelError           (ValueError)    a model cannot be found, read or used
    ├── DataError            (ValueError)    a data source cannot be found, read or used
    ├── AdapterError         (ValueError)    an adapter cannot be added, read or merged
    ├── PlanMismatchError    (RuntimeError)  model or optimizer departed from the plan
    ├── CheckpointError      (RuntimeError)  a checkpoint or run folder is missing, damaged or of another run
    └── TrainingError        (RuntimeError)  training had to stop (loss not finite, a gradient that never came)

All four parts are required arguments, so that the type checker finds an error that lacks one. This file knows nothing
of configs, models or files: it only formats.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self


class _Origin(Protocol):
    """What `frostline.config.Origin` has and None has not."""

    @property
    def short(self) -> str: ...


Place = str | Path | _Origin
"""Where a value came from: `frostline.config.Origin`, a path, or words."""


@dataclass(frozen=True)
class Problem:
    """One fault in the four parts that every message has.

    Attributes:
        what: what is wrong, with the offending value.
        where: where it came from: file, line and key, or the name of an argument.
        possible: what would have been possible, or the nearest real name.
        fix: what to do next.
    """

    what: str
    where: str
    possible: str
    fix: str

    def __str__(self) -> str:
        lines = [self.what]
        for label, text in (("where", self.where), ("possible", self.possible), ("do", self.fix)):
            indented = text.replace("\n", "\n" + " " * 12)
            lines.append(f"  {label + ':':<10}{indented}")
        return "\n".join(lines)


class FrostlineDeprecationWarning(DeprecationWarning):
    """A spelling of a config that still works and will not for ever; the message says the one that will."""


class FrostlineError(Exception):
    """Base of all errors raised on purpose; carries one or more `Problem`."""

    def __init__(
        self,
        what: str,
        *,
        where: Place,
        possible: str,
        fix: str,
    ) -> None:
        self._carry((Problem(what, str(where), possible, fix),))

    @classmethod
    def from_problems(cls, problems: Iterable[Problem]) -> Self:
        """One error that reports all `problems` together."""
        error = cls.__new__(cls)
        error._carry(tuple(problems))
        return error

    def _carry(self, problems: tuple[Problem, ...]) -> None:
        self.problems: tuple[Problem, ...] = problems
        super().__init__(self.render())

    def render(self) -> str:
        """The message as printed: one block a problem, numbered when there are several."""
        if len(self.problems) == 1:
            return str(self.problems[0])
        blocks = [f"{number}. {problem}" for number, problem in enumerate(self.problems, start=1)]
        return f"{len(self.problems)} problems\n" + "\n".join(blocks)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.problems))


def _rebuild(kind: type[FrostlineError], problems: tuple[Problem, ...]) -> FrostlineError:
    return kind.from_problems(problems)


class ConfigError(FrostlineError, ValueError):
    """A config file, a dotted override or an argument is wrong."""


class SelectorError(ConfigError, LookupError):
    """A selector is malformed, matches nothing, or contradicts another one."""


class ArgumentError(ConfigError, TypeError):
    """A call in Python has a keyword argument that the class does not take."""


class ModelError(FrostlineError, ValueError):
    """A model cannot be found, read or used for the task."""


class DataError(FrostlineError, ValueError):
    """A data source cannot be found, read or used."""


class AdapterError(FrostlineError, ValueError):
    """An adapter cannot be added, read or merged."""


class PlanMismatchError(FrostlineError, RuntimeError):
    """The model or the optimizer departed from the plan."""


class CheckpointError(FrostlineError, RuntimeError):
    """A checkpoint or a run folder is missing, damaged, in use, or belongs to another run."""


class TrainingError(FrostlineError, RuntimeError):
    """Training had to stop: the loss is not finite, or a promise of the plan was broken."""
