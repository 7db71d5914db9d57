"""The `data` section: where examples come from and how they are read. Must not open any source."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from frostline.config.section import Expects, Fault, Section
from frostline.config.wording import show


class SourceConfig(Section):
    """Where examples come from. Plain text is `source`."""

    shorthand: ClassVar[str | None] = "source"
    main_key: ClassVar[str | None] = "source"

    source: str = Field(
        min_length=1,
        description="File (jsonl, json, csv, tsv, parquet), folder of LABEL/*.txt, folder of data files, hub id, or "
        "`package:PKG/sub/folder`. Relative paths start at the current directory.",
    )
    split: str | None = Field(
        default=None,
        min_length=1,
        description="Split of a hub data set; of a folder, the files or the sub-folder of that name (train.jsonl, "
        "train-00001.parquet, train/).",
    )
    name: str | None = Field(default=None, min_length=1, description="Configuration of a hub data set.")
    encoding_errors: Literal["strict", "replace"] = Field(
        default="strict",
        description="Bytes that are not UTF-8: strict refuses them, replace reads U+FFFD and says so.",
    )


class ColumnsConfig(Section):
    """Names of the columns, where they are not the usual ones."""

    text: str | None = Field(default=None, min_length=1, description="Column of the text.")
    text_pair: str | None = Field(default=None, min_length=1, description="Column of the second text of a pair.")
    label: str | None = Field(default=None, min_length=1, description="Column of the label or labels.")
    messages: str | None = Field(default=None, min_length=1, description="Column of chat messages.")
    prompt: str | None = Field(default=None, min_length=1, description="Column of the prompt.")
    completion: str | None = Field(default=None, min_length=1, description="Column of the completion.")


def _validation_kind(value: Any) -> str | None:
    if isinstance(value, str | Mapping | SourceConfig):
        return "<source>"
    if isinstance(value, bool):
        return None
    return {float: "<fraction>", int: "<count>"}.get(type(value))


# Tags in angle brackets cannot be taken for keys in the location of an error.
Validation = Annotated[
    Annotated[SourceConfig, Tag("<source>")]
    | Annotated[float, Tag("<fraction>"), Field(gt=0, lt=1)]
    | Annotated[int, Tag("<count>"), Field(ge=1)],
    Discriminator(_validation_kind),
]


class DataConfig(Section):
    """Examples for training, validation and test."""

    main_key: ClassVar[str | None] = "train"

    train: SourceConfig = Field(
        description="Source of the training examples. A relative path starts at the current directory of every "
        "command, also when a finished run is evaluated."
    )
    validation: Annotated[
        Validation | None,
        Expects("a fraction of train between 0 and 1, a number of examples of at least 1, a source, or null for none"),
    ] = Field(
        default=0.1,
        description="A fraction or a number of examples split off from train, a source of its own, or null for none.",
    )
    test: SourceConfig | None = Field(default=None, description="Source of the test examples.")
    format: Literal["auto", "messages", "prompt_completion", "text"] = Field(
        default="auto", description="Layout of the examples for causal_lm; auto tells it from the columns."
    )
    columns: ColumnsConfig = Field(default=ColumnsConfig(), description=ColumnsConfig.__doc__)
    system: str | None = Field(default=None, description="System message put before every conversation that has none.")
    train_on: Literal["assistant", "last", "all"] = Field(
        default="assistant", description="Which tokens carry loss: all assistant turns, the last one, or everything."
    )
    max_length: int | None = Field(
        default=None, ge=1, description="Longest example in tokens; longer ones are cut. Null is the model's window."
    )
    max_examples: int | None = Field(default=None, ge=1, description="Training examples to use at most; null is all.")
    deduplicate: bool = Field(
        default=True,
        description="Remove exact duplicates before splitting, and what a more held-out part also has (test before "
        "validation before train). False keeps all; notes count what the parts share.",
    )

    @classmethod
    def faults(cls, given: Mapping[str, Any]) -> Iterator[Fault]:
        value = given.get("validation")
        possible = "a fraction between 0 and 1 (0.1), a number of examples (400), a source, or null for none"
        if isinstance(value, float) and math.isfinite(value) and not 0 < value < 1:
            whole = value >= 1 and value.is_integer()
            count = f", or write {int(value)} for that number of examples" if whole else ""
            none = ", or null for none" if value == 0 else ""
            yield Fault(
                ("validation",),
                f"`data.validation` cannot be the fraction {show(value)}",
                possible,
                f"write a fraction between 0 and 1{count}{none}",
            )
        elif isinstance(value, int) and not isinstance(value, bool) and value < 1:
            yield Fault(
                ("validation",),
                f"`data.validation` cannot be {show(value)}",
                possible,
                "write null to train without validation" if value == 0 else "write a number of at least 1",
            )
