"""Texts that a causal language model writes for prompts: greedy, in batches, left-padded.

Knows rows, tokenizer and model; nothing of training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from frostline.data import Columns, Rows
from frostline.data.chat import rendering
from frostline.data.formats import ColumnNames
from frostline.data.rows import missing_column
from frostline.errors import DataError
from frostline.tree import unwrap

from .recipe import pad_token_id

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def prompts_of(
    rows: Rows, tokenizer: PreTrainedTokenizerBase, columns: ColumnNames | None = None, system: str | None = None
) -> list[list[int]]:
    """Token ids of what the model continues, one list a row.

    Columns are looked for in the order messages, prompt, text, unless `columns` names one. A final assistant turn of
    `messages` is left out: it is what the model is asked to write. Messages and prompts go through the chat template
    (a prompt of a tokenizer without one, and a text, as they are).

    Raises:
        DataError: none of the columns is there, or a value is no conversation or text.
    """
    names = columns or Columns()
    named = {"messages": names.messages, "prompt": names.prompt, "text": names.text}
    given = [(kind, name) for kind, name in named.items() if name]
    found = [(kind, name) for kind, name in given if name in rows.columns]
    found += [(kind, kind) for kind in named if not given and kind in rows.columns]
    if not found:
        raise missing_column(rows, given[0][1] if given else "messages", None, use=given[0][0] if given else "messages")
    kind, name = found[0]
    return [_prompt(value, kind, index, rows, tokenizer, system) for index, value in enumerate(rows.column(name))]


def _prompt(
    value: Any, kind: str, index: int, rows: Rows, tokenizer: PreTrainedTokenizerBase, system: str | None
) -> list[int]:
    chat = bool(getattr(tokenizer, "chat_template", None))
    if isinstance(value, str) and kind != "messages":
        if kind == "text" or not chat:
            text = f"{system}\n\n{value}" if system and kind == "prompt" else value
            return list(tokenizer(text, verbose=False)["input_ids"])
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value or not all(isinstance(turn, dict) for turn in value):
        raise DataError(
            f"{rows.place_of(index)}: {kind} is {type(value).__name__}, not a conversation",
            where=rows.source,
            possible='a list of {"role": ..., "content": ...}' + ("" if kind == "messages" else ", or a text"),
            fix="correct that row",
        )
    if not chat:
        raise DataError(
            "the tokenizer has no chat template, so messages have no text",
            where="tokenizer.chat_template",
            fix="give tokenizer.chat_template, or rows with `prompt` or `text`",
            possible="a tokenizer with a chat template, or rows of text",
        )
    turns: list[dict[str, Any]] = list(value)
    if turns[-1].get("role") == "assistant" and len(turns) > 1:
        turns = turns[:-1]
    if system and turns[0].get("role") != "system":
        turns = [{"role": "system", "content": system}, *turns]
    with rendering(rows.place_of(index), None):
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    return list(tokenizer(str(text), add_special_tokens=False, verbose=False)["input_ids"])


def generate(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[list[int]],
    *,
    max_new_tokens: int = 128,
    batch_size: int = 8,
    max_length: int | None = None,
) -> list[str]:
    """What the model writes after each prompt, greedily, up to an end token: without prompt and special tokens.

    Args:
        model: in eval mode; put there by the caller.
        prompts: token ids.
        max_length: prompts and answer together stay within it; a longer prompt loses its beginning.
    """
    bare: Any = unwrap(model)
    device = next(bare.parameters()).device
    ends = _end_tokens(bare, tokenizer)
    room = None if max_length is None else max(1, max_length - max_new_tokens)
    cut = [ids if room is None else ids[-room:] for ids in prompts]
    texts = [""] * len(prompts)
    order = sorted(range(len(cut)), key=lambda index: len(cut[index]))
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        longest = max(len(cut[index]) for index in chosen)
        pad = pad_token_id(tokenizer)
        rows = [[pad] * (longest - len(cut[index])) + cut[index] for index in chosen]
        masks = [[0] * (longest - len(cut[index])) + [1] * len(cut[index]) for index in chosen]
        with torch.no_grad():
            written = bare.generate(
                input_ids=torch.tensor(rows, device=device),
                attention_mask=torch.tensor(masks, device=device),
                max_new_tokens=max_new_tokens,
                do_sample=False,
                pad_token_id=pad,
                eos_token_id=ends or None,
            )
        for index, ids in zip(chosen, written[:, longest:].tolist(), strict=True):
            texts[index] = str(tokenizer.decode(_until(ids, ends), skip_special_tokens=True)).strip()
    return texts


def _end_tokens(model: Any, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """End tokens of the tokenizer and of the model's generation config: chat models often end a turn with another."""
    named: list[Any] = [tokenizer.eos_token_id]
    of_model: Any = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    named += of_model if isinstance(of_model, list) else [of_model]
    return sorted({token for token in named if isinstance(token, int)})


def _until(ids: list[int], ends: list[int]) -> list[int]:
    return next((ids[:i] for i, token in enumerate(ids) if token in ends), ids)
