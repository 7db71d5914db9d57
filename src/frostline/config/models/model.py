"""The `model` and `tokenizer` sections: which model, in which form. Must not look for files or models."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from frostline.config.section import Section

Dtype = Literal["auto", "float32", "bfloat16", "float16", "float64"]


class ModelConfig(Section):
    """Which model to start from. Plain text is `name_or_path`."""

    shorthand: ClassVar[str | None] = "name_or_path"
    main_key: ClassVar[str | None] = "name_or_path"

    name_or_path: str = Field(
        min_length=1,
        description="Hub id, folder, GGUF file, or `package:PKG/sub/folder` (a model that ships inside an installed "
        "Python package). Relative paths start at the current directory.",
    )
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
