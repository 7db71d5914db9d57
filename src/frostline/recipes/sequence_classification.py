"""Recipe: texts or pairs of texts get one label, several labels, or a number.

Composes sources, labels and encoding; the loss and the metrics are in `classification_task` and
`classification_metrics`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from frostline.config.origin import Origin, Origins
from frostline.data import Rows, classification_columns, count_conflicts
from frostline.data.encode import DeferredData, encode_classification
from frostline.data.formats import ClassificationColumns
from frostline.data.labels import LabelMap
from frostline.errors import ConfigError, ModelError
from frostline.integrations.hf_models.build import Head

from .classification_metrics import render_report
from .classification_notes import blank_notes, label_notes
from .classification_task import ClassificationTask
from .parts import read_parts
from .recipe import PreparedData, Recipe, pad_token_id, resolve_max_length
from .registry import register

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from frostline.config.models.config import Config
    from frostline.training.task import Task


@register("sequence_classification")
class SequenceClassification(Recipe):
    """Number, names and kind of the labels come from the training data unless the config says them."""

    task_type = "SEQ_CLS"

    def prepare_data(
        self,
        config: Config,
        origins: Origins,
        tokenizer: PreTrainedTokenizerBase,
        model_config: PretrainedConfig,
        labels: LabelMap | None = None,
    ) -> PreparedData:
        """See `Recipe.prepare_data`."""
        max_length = resolve_max_length(config, origins, tokenizer, model_config)
        _require_end_token(config, origins, tokenizer, model_config)
        at = origins.below("data").at
        names = config.data.columns

        notes: list[str] = []

        def keys(rows: Rows, part: str) -> tuple[str, ...]:
            found = classification_columns(rows, names, at(part))
            if part == "train" and found.label is not None:
                # Counted here, before duplicates go out and leave each text with its first label.
                num = count_conflicts(rows, found.keys, found.label)
                if num:
                    texts = f"{num:,} {'text occurs' if num == 1 else 'texts occur'}"
                    notes.append(f"{texts} with more than one label; the first one counts")
            return found.keys

        parts = read_parts(config, origins, keys)
        columns = classification_columns(parts.train, names, at("train"))
        assert columns.label is not None
        values = parts.all_train.column(columns.label)
        if labels is None:
            labels = LabelMap.from_values(
                values, config.model.problem, config.model.num_labels, at("train"), parts.all_train.place_of
            )
            labels = _as_in_base(labels, model_config)
            notes += label_notes(labels, values)
        encoded: dict[str, DeferredData | None] = {"validation": None, "test": None}
        for name, rows in (("train", parts.train), ("validation", parts.validation), ("test", parts.test)):
            if rows is not None:
                of_part = classification_columns(rows, names, at(name))
                _require_room(tokenizer, of_part, max_length, at("max_length"))
                notes += blank_notes(rows, of_part.keys, name)
                encoded[name] = encode_classification(rows, tokenizer, of_part, labels, max_length, at(name))
        train = encoded["train"]
        assert train is not None
        targets = parts.train.column(columns.label)
        return PreparedData(
            train=train,
            validation=encoded["validation"],
            test=encoded["test"],
            max_length=max_length,
            num_read=parts.num_read,
            num_duplicates=parts.num_duplicates,
            labels=labels,
            label_counts={} if labels.problem == "regression" else labels.counts(targets),
            label_weights=_label_weights(config, origins, labels, targets),
            notes=(*parts.notes, *notes),
            held_out=parts.held_out,
        )

    def head(self, labels: LabelMap | None, tokenizer: PreTrainedTokenizerBase) -> Head:
        """A classifier with one output per label."""
        if labels is None:
            raise ValueError("a classification needs labels: of its data or of a finished run")
        return Head(
            "sequence_classification",
            label_names=labels.names,
            problem=labels.problem,
            pad_token_id=pad_token_id(tokenizer) if tokenizer.pad_token is not None else None,
        )

    def build_task(
        self,
        config: Config,
        tokenizer: PreTrainedTokenizerBase,
        labels: LabelMap | None = None,
        label_weights: tuple[float, ...] | None = None,
    ) -> Task:
        """See `Recipe.build_task`."""
        if labels is None:
            raise ValueError("a classification needs labels: of its data or of a finished run")
        return ClassificationTask(
            labels,
            pad_token_id=pad_token_id(tokenizer),
            label_weights=label_weights,
            label_smoothing=config.training.label_smoothing,
        )

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
        """Adds `predicted_label` and `probability`; `predicted_labels` and `probabilities` with several labels each
        (those of 0.5 and above); `predicted_value` for a regression.

        Args:
            options: `batch_size` (texts per forward, default 32).
        """
        task = self.build_task(config, tokenizer, labels)
        assert isinstance(task, ClassificationTask)
        max_length = resolve_max_length(config, Origins(), tokenizer, model_config)
        columns = classification_columns(rows, config.data.columns, need_label=False)
        _require_room(tokenizer, columns, max_length, Origins().at("data", "max_length"))
        encoded = encode_classification(rows, tokenizer, columns, None, max_length)
        with torch.no_grad():
            logits = task.logits(model, encoded.examples, batch_size=int(options.get("batch_size", 32)))
        return [{**row, **answer} for row, answer in zip(rows, task.answers(logits), strict=True)]

    def render_report(self, report: Mapping[str, Any]) -> str:
        """Per-class table and confusion matrix."""
        return render_report(report)


def _as_in_base(labels: LabelMap, model_config: PretrainedConfig) -> LabelMap:
    """The same labels in the order of the head that the base may already have: its rows keep their meaning."""
    theirs = tuple(str(name) for _, name in sorted((model_config.id2label or {}).items()))
    if labels.problem != "regression" and set(theirs) == set(labels.names):
        return LabelMap(theirs, labels.problem)
    return labels


def _require_room(
    tokenizer: PreTrainedTokenizerBase, columns: ClassificationColumns, max_length: int | None, origin: Origin
) -> None:
    """Refuses a limit that the special tokens fill: below it tokenizers cut nothing, at it no text is left."""
    pair = columns.text_pair is not None
    num_special = tokenizer.num_special_tokens_to_add(pair=pair)
    needed = num_special + (2 if pair else 1)
    if max_length is None or max_length >= needed:
        return
    texts = "a pair of texts, which needs a token of each" if pair else "a text"
    special = f"{num_special} special token{'' if num_special == 1 else 's'}"
    raise ConfigError(
        f"data.max_length is {max_length:,}, which leaves no room for {texts}",
        where=origin,
        possible=f"{needed:,} at least: the tokenizer adds {special}",
        fix="raise it",
    )


def _label_weights(config: Config, origins: Origins, labels: LabelMap, values: Any) -> tuple[float, ...] | None:
    asked = config.training.class_weights
    where = origins.at("training", "class_weights")
    if config.training.label_smoothing and labels.problem != "single_label":
        raise ConfigError(
            f"training.label_smoothing has no meaning for a {labels.problem} problem",
            where=origins.at("training", "label_smoothing"),
            possible="label smoothing with one label per example",
            fix="remove label_smoothing",
        )
    if asked == "none":
        return None
    if asked == "balanced":
        return tuple(labels.balanced_weights(values, where))
    if labels.problem != "single_label":
        raise ConfigError(
            f"training.class_weights has no meaning for a {labels.problem} problem",
            where=where,
            possible="class weights with one label per example",
            fix="remove class_weights",
        )
    weights: Mapping[str, float] = asked
    unknown, absent = sorted(set(weights) - set(labels.names)), sorted(set(labels.names) - set(weights))
    if unknown or absent:
        fault = f"unknown labels: {', '.join(unknown)}" if unknown else f"no weight for: {', '.join(absent)}"
        raise ConfigError(
            f"training.class_weights does not fit the labels of the data; {fault}",
            where=where,
            possible=f"labels of the training data: {', '.join(labels.names)}",
            fix="give each label one weight",
        )
    return tuple(float(weights[name]) for name in labels.names)


def _require_end_token(
    config: Config, origins: Origins, tokenizer: PreTrainedTokenizerBase, model_config: PretrainedConfig
) -> None:
    """Refuses an encoder-decoder with a tokenizer that ends no text.

    Such classifiers (BART, T5) read the hidden state of the end token.
    """
    end: Any = model_config.eos_token_id
    probe: Any = tokenizer("a")
    if not model_config.is_encoder_decoder or end is None or end in probe["input_ids"]:
        return
    section = "tokenizer" if config.tokenizer.name_or_path is not None else "model"
    raise ModelError(
        f"the tokenizer puts no end token ({tokenizer.convert_ids_to_tokens(end)}, id {end}) into a text, and the "
        f"classifier of {model_config.model_type} reads it",
        where=origins.at(section, "name_or_path"),
        possible="a tokenizer whose texts end with that token, as those that such models come with do",
        fix="name one in tokenizer.name_or_path, or add the token to the post_processor in its tokenizer.json",
    )
