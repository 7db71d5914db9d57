"""The `freeze_config` section: raw selectors and how frozen parts behave. Must not know any model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from frostline.config.models.phases import PhaseConfig, as_tuple, order_faults
from frostline.config.models.selection import RawSelectors, selector_faults
from frostline.config.section import Fault, Section


class FreezeConfig(Section):
    """What to freeze and thaw. Neither list has to be there; `[]` selects nothing."""

    main_key: ClassVar[str | None] = "freeze_modules"

    freeze_modules: RawSelectors = Field(default=(), description="Selectors of what to freeze.")
    unfreeze_modules: RawSelectors = Field(
        default=(), description="Selectors of what to thaw; wins over freeze_modules."
    )
    frozen_mode: Literal["eval", "train"] = Field(
        default="eval",
        description="eval: wholly frozen subtrees keep normalization statistics and dropout still; train: they follow "
        "the model.",
    )
    allow_frozen_new: bool = Field(
        default=False, description="Allow freezing parameters that the base files do not hold, such as a fresh head."
    )
    phases: Annotated[tuple[PhaseConfig, ...], BeforeValidator(as_tuple)] = Field(
        default=(), description="What trains from later steps on; each phase is overlaid on the one before."
    )

    @classmethod
    def faults(cls, given: Mapping[str, Any]) -> Iterator[Fault]:
        yield from order_faults(given.get("phases"))
        for name in ("freeze_modules", "unfreeze_modules"):
            if name in given:
                yield from selector_faults(name, given[name])
