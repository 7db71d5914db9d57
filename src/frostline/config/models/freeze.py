"""The `freeze_config` section: raw selectors and how frozen parts behave. Must not know any model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from frostline.config.models.phases import PhaseConfig, as_tuple, order_faults
from frostline.config.models.selection import RawSelectors, selector_faults
from frostline.config.section import Fault, Section, never_null
from frostline.config.wording import show

_LEGACY = "Deprecated, for blocks of other tools. "


class FreezeConfig(Section):
    """What to freeze and thaw. No block freezes nothing; an empty one freezes the vision tower (deprecated)."""

    main_key: ClassVar[str | None] = "freeze_modules"

    freeze_modules: RawSelectors = Field(
        default=None,
        json_schema_extra=never_null,
        description="Selectors of what to freeze; one may have its own `frozen_mode`. `[]` freezes nothing.",
    )
    unfreeze_modules: RawSelectors = Field(
        default=None,
        json_schema_extra=never_null,
        description="Selectors of what to thaw; wins over freeze_modules. `conditional: true` allows steps in which "
        "what one selects gets no gradient.",
    )
    frozen_mode: Literal["eval", "train"] = Field(
        default="eval",
        description="eval: wholly frozen subtrees keep normalization statistics and dropout still; train: they follow "
        "the model.",
    )
    allow_frozen_new: bool = Field(
        default=False, description="Allow freezing parameters that the base files do not hold, such as a fresh head."
    )
    freeze_vision_tower: bool | None = Field(
        default=None,
        json_schema_extra=never_null,
        description=_LEGACY + "Freezes modules with the word vision, visual or image_encoder in their name; true where "
        "omitted, unless the block has a key that is not deprecated.",
    )
    freeze_audio_tower: bool | None = Field(
        default=None,
        json_schema_extra=never_null,
        description=_LEGACY + "Freezes modules with the word audio, speech or sound in their name.",
    )
    freeze_language_model: bool | None = Field(
        default=None,
        json_schema_extra=never_null,
        description=_LEGACY + "Freezes modules with the word language, text or llm in their name.",
    )
    freeze_video_embedder: bool | None = Field(
        default=None,
        json_schema_extra=never_null,
        description=_LEGACY + "Freezes patch_generator.video_embedder.",
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
        for name, field in cls.model_fields.items():
            if name in given and given[name] is None and field.annotation == bool | None:
                yield Fault(
                    (name,),
                    f"`freeze_config.{name}` cannot be {show(None)}",
                    "true or false",
                    "remove the line, or use selectors in freeze_modules (the key is deprecated)",
                )
