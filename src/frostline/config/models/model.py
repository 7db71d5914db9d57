"""The `model` and `tokenizer` sections: which model, in which form. Must not look for files or models."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from frostline.config.section import Expects, Fault, Section

Dtype = Literal["auto", "float32", "bfloat16", "float16", "float64"]


class ModelConfig(Section):
    """Which model to start from. Plain text is `name_or_path`."""

    shorthand: ClassVar[str | None] = "name_or_path"
    main_key: ClassVar[str | None] = "name_or_path"

    name_or_path: str | None = Field(
        default=None,
        min_length=1,
        description="Hub id, folder, GGUF file, or `package:PKG/sub/folder` (a model that ships inside an installed "
        "Python package). Relative paths start at the current directory. Required unless `factory` is given.",
    )
    factory: str | None = Field(
        default=None,
        min_length=1,
        description="`module:callable`, your own code that returns an nn.Module, in place of `name_or_path`; needs "
        "`trust_code: true`. The module is imported from the current directory or from what is installed. A plan calls "
        "it on the meta device.",
    )
    factory_arguments: Annotated[dict[str, Any], Expects("a mapping of the factory's keyword arguments")] = Field(
        default={}, description="Keyword arguments of the factory."
    )
    trust_code: bool = Field(default=False, description="Run the Python code that `factory` names.")
    revision: str | None = Field(default=None, min_length=1, description="Branch, tag or commit of a hub model.")
    dtype: Dtype = Field(default="auto", description="Number format of the weights; `auto` keeps that of the files.")
    attn_implementation: Literal["eager", "sdpa", "flash_attention_2"] = Field(
        default="sdpa", description="Attention kernel that the model uses."
    )
    trust_remote_code: bool = Field(default=False, description="Run Python code that comes with the model.")
    num_labels: int | None = Field(
        default=None, ge=1, description="Number of labels; null counts them in the training data."
    )
    problem: Literal["single_label", "multi_label", "regression"] | None = Field(
        default=None, description="Kind of classification; null tells it from the training data."
    )

    @classmethod
    def faults(cls, given: Mapping[str, Any]) -> Iterator[Fault]:
        name, factory = given.get("name_or_path"), given.get("factory")
        if name is None and factory is None:
            there = ", ".join(str(key) for key in given) or "nothing"
            yield Fault(
                ("name_or_path",),
                f"`model.name_or_path` is missing; given there: {there}",
                cls.model_fields["name_or_path"].description or "",
                "add below `model`, for example: name_or_path: bert-base-uncased",
            )
        if factory is None:
            for key in ("factory_arguments", "trust_code"):
                if given.get(key):
                    yield Fault((key,), f"`model.{key}` has no effect without `model.factory`", *_FACTORY_OR_NOT)
            return
        if name is not None:
            yield Fault(
                ("factory",),
                "`model.factory` and `model.name_or_path` both say which model it is",
                "one of them",
                "remove the other",
            )
        if isinstance(factory, str) and not _FACTORY.fullmatch(factory):
            yield Fault(
                ("factory",),
                f"`model.factory` is {factory!r}, which names no callable",
                "`module:callable`, such as my_models:build, with dots as in an import",
                "put a colon between the module and the callable, and leave `.py` out",
            )
        elif given.get("trust_code") is not True:
            yield Fault(
                ("factory",),
                f"`model.factory` runs the Python code {factory}, and `model.trust_code` is not true",
                "trust_code: true, once you have read that code",
                "read that code, then add `trust_code: true` below `model`",
            )
        for key, unset in _OF_FILES.items():
            if given.get(key, unset) != unset:
                yield Fault(
                    (key,),
                    f"`model.{key}` has no effect with `model.factory`",
                    "read where the model comes from files (model.name_or_path)",
                    "remove it, or do it in the factory",
                )


_FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_FACTORY_OR_NOT = ("factory: module:callable", "add `factory`, or remove it")
_OF_FILES: Mapping[str, Any] = {"revision": None, "trust_remote_code": False, "attn_implementation": None}


class TokenizerConfig(Section):
    """Which tokenizer to use, where it is not the model's own. Plain text is `name_or_path`."""

    shorthand: ClassVar[str | None] = "name_or_path"
    main_key: ClassVar[str | None] = "name_or_path"

    name_or_path: str | None = Field(
        default=None, min_length=1, description="As in `model`; null is the model's tokenizer."
    )
    chat_template: str | None = Field(
        default=None,
        min_length=1,
        description="File with a Jinja chat template, or the template itself; null is the tokenizer's own.",
    )
