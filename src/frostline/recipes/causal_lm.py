"""Recipe: a language model learns to continue: conversations, prompt and completion, or plain text.

Composes sources, chat template and encoding; the loss is in `causal_lm_task`, text generation in `generation`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from frostline.config.origin import Origin, Origins
from frostline.data import Rows, detect_format, key_columns
from frostline.data.encode import DeferredData, EncodedData, EncodeStats, encode_causal_lm
from frostline.data.formats import Format
from frostline.data.labels import LabelMap
from frostline.errors import ConfigError, DataError, ModelError
from frostline.integrations.hf_models.build import Head

from .causal_lm_task import CausalLMTask
from .parts import read_parts
from .recipe import PreparedData, Recipe, pad_token_id, resolve_max_length
from .registry import register

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from frostline.config.models.config import Config
    from frostline.training.task import Task


@register("causal_lm")
class CausalLM(Recipe):
    """Supervised fine-tuning of a causal language model."""

    task_type = "CAUSAL_LM"

    def prepare_data(
        self,
        config: Config,
        origins: Origins,
        tokenizer: PreTrainedTokenizerBase,
        model_config: PretrainedConfig,
        labels: LabelMap | None = None,
    ) -> PreparedData:
        """See `Recipe.prepare_data`; `labels` has no meaning here."""
        max_length = resolve_max_length(config, origins, tokenizer, model_config)
        at = origins.below("data").at

        def keys(rows: Rows, part: str) -> list[str]:
            return key_columns(rows, _format(rows, config, origins, part), config.data.columns, at(part))

        def encode(rows: Rows, part: str) -> EncodedData:
            return encode_causal_lm(
                rows,
                tokenizer,
                _format(rows, config, origins, part),
                columns=config.data.columns,
                system=config.data.system,
                train_on=config.data.train_on,
                max_length=max_length,
                origin=at(part),
            )

        def encode_train() -> EncodedData:
            encoded = encode(parts.train, "train")
            if not encoded.examples:
                raise _nothing_to_train(encoded.stats, max_length, at)
            return encoded

        def deferred(rows: Rows | None, part: str) -> DeferredData | None:
            return None if rows is None else DeferredData(None, partial(encode, rows, part))

        parts = read_parts(config, origins, keys)
        return PreparedData(
            train=DeferredData(None, encode_train),
            validation=deferred(parts.validation, "validation"),
            test=deferred(parts.test, "test"),
            max_length=max_length,
            num_read=parts.num_read,
            num_duplicates=parts.num_duplicates,
            notes=parts.notes,
            held_out=parts.held_out,
        )

    def check_model(self, model: nn.Module, origin: Origin) -> None:
        """Refuses encoders: a model that sees the next token learns to copy it, and its loss falls for nothing.

        Changes the last of a few tokens and looks whether the logits before it move.
        """
        embedding = model.get_input_embeddings()  # type: ignore[operator]  # of every Hugging Face model
        ids = torch.arange(8, device=embedding.weight.device)[None] % embedding.weight.shape[0]
        other = ids.clone()
        other[0, -1] = (other[0, -1] + 1) % embedding.weight.shape[0]
        with torch.no_grad():
            first, second = (model(input_ids=tokens).logits[0, :-1].float() for tokens in (ids, other))
        # Equal shapes run equal kernels, so that a causal model gives equal bits; the margin is for exotic layers.
        if float((first - second).abs().max()) > 1e-4 * float(first.abs().max()):
            raise ModelError(
                f"{type(model).__name__} sees the tokens that it should predict: a later token changes earlier logits",
                where=origin,
                possible="decoders, such as Llama, Qwen or GPT-2; encoders such as BERT look both ways",
                fix="choose a causal language model, or the recipe sequence_classification",
            )

    def head(self, labels: LabelMap | None, tokenizer: PreTrainedTokenizerBase) -> Head:
        """The model's own output over the vocabulary."""
        return Head("causal_lm")

    def build_task(
        self,
        config: Config,
        tokenizer: PreTrainedTokenizerBase,
        labels: LabelMap | None = None,
        label_weights: tuple[float, ...] | None = None,
    ) -> Task:
        """See `Recipe.build_task`."""
        return CausalLMTask(pad_token_id(tokenizer), config.training.label_smoothing)

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
        """Adds `generated` to rows that have `messages`, `prompt` or `text`.

        Args:
            options: `max_new_tokens` (default 128, at most half of the model's window), `batch_size` (default 8).

        Raises:
            ConfigError: `max_new_tokens` leaves no room for a prompt.
        """
        from .generation import generate, prompts_of

        max_length = resolve_max_length(config, Origins(), tokenizer, model_config)
        prompts = prompts_of(rows, tokenizer, config.data.columns, config.data.system)
        num_new = options.get("max_new_tokens") or min(128, max(1, (max_length or 256) // 2))
        if max_length is not None and num_new >= max_length:
            raise ConfigError(
                f"max_new_tokens is {num_new:,}, and the model takes {max_length:,} tokens, prompt included",
                where="--max-new-tokens",
                possible=f"1 to {max_length - 1:,}",
                fix="lower it",
            )
        texts = generate(
            model,
            tokenizer,
            prompts,
            max_new_tokens=int(num_new),
            batch_size=int(options.get("batch_size", 8)),
            max_length=max_length,
        )
        return [{**row, "generated": text} for row, text in zip(rows, texts, strict=True)]


def _nothing_to_train(stats: EncodeStats, max_length: int | None, at: Callable[..., Origin]) -> DataError:
    what = f"none of the {stats.num_read:,} training examples keeps a token to train"
    longest = f"the longest example has {stats.longest_dropped:,} tokens"
    if stats.enough is None or max_length is None:
        return DataError(
            what,
            where=at("train"),
            possible=f"examples with at least one token to predict; {longest}",
            fix="check that the conversations have assistant turns (data.train_on) and the texts are not empty",
        )
    return DataError(
        f"{what} within data.max_length: {max_length:,}",
        where=at("max_length"),
        possible=f"{stats.enough:,} at least, which keeps one token of one example; {longest}",
        fix="raise data.max_length",
    )


def _format(rows: Rows, config: Config, origins: Origins, part: str) -> Format:
    asked = config.data.format
    if asked != "auto":
        return asked
    return detect_format(rows.column_names, config.data.columns, origins.at("data", part), rows.source)
