"""What a recipe is: the few decisions that differ from task to task.

Knows configs, data and models by their interfaces; nothing of freezing, adapters, the loop or run folders.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

from frostline.config.origin import Origin, Origins
from frostline.data.encode import DeferredData, EncodedData, count_duplicates, render_losses
from frostline.data.labels import LabelMap
from frostline.data.rows import Rows
from frostline.errors import ConfigError
from frostline.integrations.hf_models.build import Head, model_window

if TYPE_CHECKING:
    from rich.text import Text
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from frostline.config.models.config import Config
    from frostline.training.task import Task

_NUM_NAMES = 8  # labels that a line names


@dataclass(frozen=True)
class PreparedData:
    """Examples, encoded or to be encoded at first use, and what happened on the way to them.

    Attributes:
        train: the training examples; `.examples` goes to the loop.
        validation: None when the config asks for none.
        test: None when the config names none.
        labels: of a classification; None for other tasks.
        label_counts: training examples of each label.
        label_weights: weight of each label in the loss, in the order of `labels.names`; None for equal ones.
        num_read: rows of the training source.
        num_duplicates: of these, rows that went out as exact duplicates.
        max_length: tokens that every example was cut to.
        notes: what a user should know, one line each.
        held_out: the rows of validation and test, by which `frostline evaluate` knows whether they are those of the
            run; a recipe that gives none is not asked.
    """

    train: EncodedData | DeferredData
    validation: EncodedData | DeferredData | None
    test: EncodedData | DeferredData | None
    max_length: int | None
    num_read: int
    num_duplicates: int = 0
    labels: LabelMap | None = None
    label_counts: Mapping[str, int] = field(default_factory=dict[str, int])
    label_weights: tuple[float, ...] | None = None
    notes: tuple[str, ...] = ()
    held_out: Mapping[str, Rows] = field(default_factory=dict[str, Rows])

    @property
    def parts(self) -> dict[str, EncodedData | DeferredData]:
        """`train`, and `validation` and `test` where there are any."""
        named = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: part for name, part in named.items() if part is not None}

    @property
    def is_encoded(self) -> bool:
        """Whether every part has been tokenized, so that what was cut and dropped is known."""
        return all(part.is_encoded for part in self.parts.values() if isinstance(part, DeferredData))

    def encode(self) -> None:
        """Tokenize now what was deferred."""
        for part in self.parts.values():
            _ = part.stats

    @property
    def summary(self) -> str:
        """One line, as `2,225 read, 98 duplicates out, 800 + 400 used, 5 labels, 12 cut at 512 tokens`."""
        pieces = [f"{self.num_read:,} read"]
        if self.num_duplicates:
            pieces.append(count_duplicates(self.num_duplicates))
        used = [self.train] if self.validation is None else [self.train, self.validation]
        pieces.append(" + ".join(f"{len(part):,}" for part in used) + " used")
        if self.test is not None:
            pieces.append(f"{len(self.test):,} test")
        if self.labels is not None and self.labels.problem != "regression":
            pieces.append(f"{self.labels.num_labels} labels")
        if not self.is_encoded:
            return ", ".join(pieces) + "; --data N shows lengths and cuts"
        return ", ".join([*pieces, *render_losses([part.stats for part in self.parts.values()], self.max_length)])

    @property
    def label_summary(self) -> str:
        """Training examples of each label, as `business 158, sport 140, and 3 more`; empty without labels."""
        named = [f"{name if name == name.strip() else repr(name)} {num:,}" for name, num in self.label_counts.items()]
        more = [f"and {len(named) - _NUM_NAMES:,} more"] if len(named) > _NUM_NAMES else []
        return ", ".join([*named[:_NUM_NAMES], *more])

    def preview(self, tokenizer: PreTrainedTokenizerBase, num: int) -> Text:
        """The first `num` training examples with the trained tokens marked, for `plan --data`."""
        from frostline.data.preview import render_examples

        train = self.train.encoded if isinstance(self.train, DeferredData) else self.train
        return render_examples(train, tokenizer, num, labels=self.labels, max_length=self.max_length)


class Recipe(ABC):
    """One task. Stateless: what it decides goes into `PreparedData`, `Head` and `Task`.

    Attributes:
        name: what `recipe:` in a config says; set by `register`.
        task_type: the word for it in peft's `adapter_config.json`.
    """

    name: ClassVar[str] = ""
    task_type: ClassVar[str] = ""

    @abstractmethod
    def prepare_data(
        self,
        config: Config,
        origins: Origins,
        tokenizer: PreTrainedTokenizerBase,
        model_config: PretrainedConfig,
        labels: LabelMap | None = None,
    ) -> PreparedData:
        """Reads, splits, labels and encodes what `config.data` names.

        Args:
            model_config: the base model's own config: its window, and the labels of a head that it may have.
            labels: those of a finished run, to evaluate it; None makes them from the training data.

        Raises:
            DataError: a source is missing, malformed, empty, or lacks a column or label.
        """

    @abstractmethod
    def head(self, labels: LabelMap | None, tokenizer: PreTrainedTokenizerBase) -> Head:
        """What stands on top of the model."""

    @abstractmethod
    def build_task(
        self,
        config: Config,
        tokenizer: PreTrainedTokenizerBase,
        labels: LabelMap | None = None,
        label_weights: tuple[float, ...] | None = None,
    ) -> Task:
        """The task that the loop trains."""

    @abstractmethod
    def predict(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        rows: Rows,
        config: Config,
        *,
        model_config: PretrainedConfig,
        labels: LabelMap | None = None,
        **options: Any,
    ) -> list[dict[str, Any]]:
        """`rows`, each with predictions added. `model` is in eval mode on its device; rows need no labels."""

    def check_model(self, model: nn.Module, origin: Origin) -> None:
        """Refuses a loaded model that would train, but not for this task; in eval mode. Nothing to check by default.

        Raises:
            ModelError: the model is of another kind; `origin` is where the config names it.
        """
        del model, origin

    def render_report(self, report: Mapping[str, Any]) -> str:
        """The `report` of an evaluation as lines to print; empty when there is nothing beyond the metrics."""
        return ""


def pad_token_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """What fills shorter examples; 0 for a tokenizer that has no token for it (padding is masked all the same)."""
    value: Any = tokenizer.pad_token_id
    return value if isinstance(value, int) else 0


def resolve_max_length(
    config: Config, origins: Origins, tokenizer: PreTrainedTokenizerBase, model_config: PretrainedConfig
) -> int | None:
    """`data.max_length`, by default what model and tokenizer can take; None when nothing bounds it.

    Raises:
        ConfigError: the config asks for more than the model can take.
    """
    window = model_window(model_config)
    # Tokenizers without a limit of their own say 1e30.
    limits = [limit for limit in (window, tokenizer.model_max_length) if limit is not None and limit < 1e9]
    asked = config.data.max_length
    if asked is None:
        return int(min(limits)) if limits else None
    if window is not None and asked > window:
        raise ConfigError(
            f"data.max_length is {asked:,}, and the model takes {window:,} tokens",
            where=origins.at("data", "max_length"),
            possible=f"1 to {window:,}; null is {int(min(limits)):,}",
            fix="lower it, or choose a model with a longer window",
        )
    return asked
