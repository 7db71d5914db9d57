"""The `peft` section: which adapters, on which modules. Must not know any method's maths or any model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pydantic import Field

from frostline.config.models.model import Dtype
from frostline.config.models.selection import RawSelectors, selector_faults
from frostline.config.section import Fault, Section


class PeftConfig(Section):
    """Adapters to add. Leave the section out for full or partial fine-tuning without adapters."""

    aliases: ClassVar[Mapping[str, str]] = {
        "r": "rank",
        "dim": "rank",
        "lora_rank": "rank",
        "lora_alpha": "alpha",
        "lora_dropout": "dropout",
    }
    main_key: ClassVar[str | None] = "method"

    method: str = Field(default="lora", min_length=1, description="Name of the adapter method.")
    target_modules: RawSelectors = Field(
        default="all-linear",
        description="Modules to adapt: `all-linear` (every supported linear but the output head and modules trained in "
        "full), or selectors.",
    )
    exclude_modules: RawSelectors = Field(default=(), description="Selectors of modules never to adapt; always wins.")
    rank: int = Field(default=8, ge=1, description="Rank of each adapter.")
    alpha: float | None = Field(
        default=None,
        gt=0,
        description="Strength of the adapters: their output is scaled by alpha / rank. Null is 2 x rank.",
    )
    dropout: float = Field(default=0.0, ge=0, lt=1, description="Dropout on the adapters' input.")
    use_rslora: bool = Field(default=False, description="Scale by alpha / sqrt(rank) instead of alpha / rank.")
    dtype: Dtype = Field(default="auto", description="Number format of the adapters.")

    @classmethod
    def faults(cls, given: Mapping[str, Any]) -> Iterator[Fault]:
        for name in ("target_modules", "exclude_modules"):
            if name not in given:
                continue
            value = given[name]
            if name == "target_modules" and isinstance(value, list | tuple) and not value:
                yield Fault(
                    (name,),
                    "`peft.target_modules` is an empty list, so nothing would be adapted",
                    "all-linear (the default), or a list of selectors",
                    "name modules to adapt, or remove `peft` to train without adapters",
                )
            yield from selector_faults(name, value)
