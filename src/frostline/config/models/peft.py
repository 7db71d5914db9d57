"""The `peft` section: which adapters, on which modules. Must not know any method's maths or any model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, cast

from pydantic import ConfigDict, Field

from frostline.config.models.model import Dtype
from frostline.config.models.selection import RawSelectors, selector_faults
from frostline.config.section import Fault, Section

_BUILT_IN = "lora"


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

    method: str = Field(
        default=_BUILT_IN,
        min_length=1,
        description="lora, or a method that another package brings; the keys below but the selectors are lora's.",
        json_schema_extra={"const": _BUILT_IN},
    )
    target_modules: RawSelectors = Field(
        default="all-linear",
        description="Modules to adapt: `all-linear` (every supported linear but the output head and modules trained in "
        "full), or selectors.",
    )
    exclude_modules: RawSelectors = Field(
        default=(),
        description="Selectors of modules never to adapt; always wins. One that takes none of the targets away is an "
        "error.",
    )
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
    def variant(cls, given: Any) -> type[Section]:
        return MethodConfig if is_of_another_method(given) else cls

    @classmethod
    def faults(cls, given: Mapping[str, Any]) -> Iterator[Fault]:
        return _target_faults(given)


class MethodConfig(Section):
    """Adapters of a method that another package brings. It checks the keys that are its own."""

    model_config = ConfigDict(extra="allow")
    main_key: ClassVar[str | None] = "method"

    method: str = Field(
        min_length=1, description="Name of the adapter method.", json_schema_extra={"not": {"const": _BUILT_IN}}
    )
    target_modules: RawSelectors = Field(default="all-linear", description="As for lora.")
    exclude_modules: RawSelectors = Field(default=(), description="As for lora.")

    @classmethod
    def faults(cls, given: Mapping[str, Any]) -> Iterator[Fault]:
        return _target_faults(given)


def is_of_another_method(given: Any) -> bool:
    """Whether a raw `peft` block names a method that is not built in, so that its keys are not ours to check."""
    if isinstance(given, Section):
        return isinstance(given, MethodConfig)
    method = cast("Mapping[str, Any]", given).get("method") if isinstance(given, Mapping) else None
    return isinstance(method, str) and method not in ("", _BUILT_IN)


def _target_faults(given: Mapping[str, Any]) -> Iterator[Fault]:
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
