"""An entry of `freeze_config.phases`: when it begins and what changes there. Must not know any model or data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, cast

from pydantic import Field

from frostline.config.models.selection import RawSelectors, selector_faults
from frostline.config.section import Fault, Section
from frostline.config.wording import is_number

_EXAMPLE = "{epoch: 1} or {step: 500}"


def as_tuple(value: Any) -> Any:
    """A list as a tuple, since YAML has only lists; anything else as it is."""
    return tuple(value) if isinstance(value, list) else value


class PhaseStartConfig(Section):
    """When a phase comes into force: one of the two."""

    example: ClassVar[str | None] = _EXAMPLE

    epoch: float | None = Field(
        default=None, gt=0, description="After so many passes over the training examples, rounded up to whole steps."
    )
    step: int | None = Field(default=None, ge=1, description="Before this optimizer step; the first one is 0.")

    @classmethod
    def faults(cls, given: Mapping[str, Any]) -> Iterator[Fault]:
        named = [name for name in ("epoch", "step") if given.get(name) is not None]
        if len(named) == 2:
            yield Fault((), "`at` names both an epoch and a step", _EXAMPLE, "name one of them")
        elif not named and not set(given) - {"epoch", "step"}:  # an unknown key is told as such
            yield Fault((), "`at` names neither an epoch nor a step", _EXAMPLE, "name one of them")


class PhaseConfig(Section):
    """What changes from a step on; everything else stays as in the phase before."""

    main_key: ClassVar[str | None] = "at"

    at: PhaseStartConfig = Field(description=PhaseStartConfig.__doc__)
    freeze_modules: RawSelectors = Field(default=(), description="Selectors of what stops to train.")
    unfreeze_modules: RawSelectors = Field(
        default=(), description="Selectors of what starts to train; wins over freeze_modules."
    )
    lr: float | None = Field(
        default=None,
        gt=0,
        description="Peak learning rate from here on, for groups that name none; null keeps that of the phase before.",
    )

    @classmethod
    def faults(cls, given: Mapping[str, Any]) -> Iterator[Fault]:
        for name in ("freeze_modules", "unfreeze_modules"):
            if name in given:
                yield from selector_faults(name, given[name])
        selects = any(given.get(name, []) not in ([], ()) for name in ("freeze_modules", "unfreeze_modules"))
        if not selects and given.get("lr") is None and set(given) <= set(cls.model_fields):  # else that is told
            yield Fault(
                (),
                "the phase changes nothing: it has neither selectors nor a learning rate",
                "freeze_modules, unfreeze_modules, lr",
                "say what changes, or remove the phase",
            )


def order_faults(phases: Any) -> Iterator[Fault]:
    """Phases of one unit that do not follow one another; where units are mixed, only the length of an epoch tells."""
    if not isinstance(phases, list | tuple):
        return
    last: dict[str, float] = {}
    for index, phase in enumerate(cast("list[Any] | tuple[Any, ...]", phases)):
        at = cast("Mapping[str, Any]", phase).get("at") if isinstance(phase, Mapping) else None
        for unit in ("epoch", "step") if isinstance(at, Mapping) else ():
            value: Any = cast("Mapping[str, Any]", at).get(unit)
            if not is_number(value):
                continue
            if unit in last and value <= last[unit]:
                yield Fault(
                    ("phases", index),
                    f"the phase at {unit} {value:g} stands behind the one at {unit} {last[unit]:g}, "
                    "but does not begin later",
                    "phases in the order in which they come into force, each at a step of its own",
                    "sort them, or put what begins together into one phase",
                )
            last[unit] = value
