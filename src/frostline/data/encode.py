"""Encode: rows to token ids and targets, with counts of what was cut and what was dropped.

Knows rows, tokenizers and label maps; nothing of batches, models or where rows came from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from frostline.config.origin import Origin
from frostline.data.chat import IGNORED, Encoded, TrainOn, render_chats
from frostline.data.formats import ClassificationColumns, ColumnNames, Format, key_columns, to_messages
from frostline.data.labels import LabelMap
from frostline.data.rows import Rows, place
from frostline.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Example = dict[str, Any]
_CHUNK = 512  # texts per call of the tokenizer, which works on a batch in parallel


@dataclass(frozen=True)
class EncodeStats:
    """What happened to the examples on the way.

    Attributes:
        num_read: rows before duplicates went out (set by the caller who removed them, see `dataclasses.replace`).
        num_duplicates: rows removed as duplicates (likewise).
        num_truncated: examples longer than `max_length`, cut at their end.
        num_dropped: examples that kept no label (nothing of the answer fits, or there is no assistant turn).
        num_bare: assistant turns without a text to train, see `frostline.data.chat.Encoded`.
        lengths: tokens of each kept example before the cut, in the order of the examples.
        longest_dropped: tokens of the longest example that was dropped, before the cut.
        enough: the smallest `max_length` with which one of the dropped examples keeps a label; None where none has one.
    """

    num_read: int = 0
    num_duplicates: int = 0
    num_truncated: int = 0
    num_dropped: int = 0
    lengths: tuple[int, ...] = ()
    num_bare: int = 0
    longest_dropped: int = 0
    enough: int | None = None

    def render(self, max_length: int | None = None) -> str:
        """One line, as `2,225 read, 98 duplicates out, 12 cut at 512 tokens, 1 dropped (no label left)`."""
        parts = [f"{self.num_read:,} read"]
        if self.num_duplicates:
            parts.append(count_duplicates(self.num_duplicates))
        return ", ".join([*parts, *render_losses([self], max_length)])


def count_duplicates(num: int) -> str:
    """`1 duplicate out`, `98 duplicates out`."""
    return f"{num:,} duplicate{'' if num == 1 else 's'} out"


def render_losses(stats: Sequence[EncodeStats], max_length: int | None) -> list[str]:
    """What did not reach the model, summed over parts of the data: cut, dropped, answers without a text."""
    cut, dropped = sum(part.num_truncated for part in stats), sum(part.num_dropped for part in stats)
    bare = sum(part.num_bare for part in stats)
    pieces: list[str] = []
    if cut:
        pieces.append(f"{cut:,} cut" + (f" at {max_length:,} tokens" if max_length else ""))
    if dropped:
        pieces.append(f"{dropped:,} dropped (no label left)")
    if bare:
        pieces.append(f"{bare:,} assistant turn{'' if bare == 1 else 's'} without a text to train")
    return pieces


@dataclass(frozen=True)
class EncodedData:
    """Examples ready for `pad_batch`, and what happened on the way to them.

    Attributes:
        examples: mappings of lists: `input_ids`, `labels`, for classification also `attention_mask` and, where the
            model has them, `token_type_ids`.
        stats: counts; `stats.lengths[i]` belongs to `examples[i]`.
        kept: for each example the index of its row in the rows that were encoded.
    """

    examples: Sequence[Example]
    stats: EncodeStats
    kept: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.examples)


class DeferredData:
    """Like `EncodedData`, with texts that are tokenized when someone first asks for examples or counts.

    A plan needs to know how many examples there are, not their tokens: of a million texts that is minutes.

    Args:
        num_examples: how many there will be; None where an example may be dropped, so that to know it takes the work.
        encode: does the work, once.
    """

    def __init__(self, num_examples: int | None, encode: Callable[[], EncodedData]) -> None:
        self._num_examples = num_examples
        self._encode = encode
        self._encoded: EncodedData | None = None

    @property
    def is_encoded(self) -> bool:
        """Whether the texts have been tokenized, so that the counts are known without work."""
        return self._encoded is not None

    @property
    def encoded(self) -> EncodedData:
        """The examples; tokenizes at the first call."""
        if self._encoded is None:
            self._encoded = self._encode()
        return self._encoded

    @property
    def examples(self) -> Sequence[Example]:
        """See `EncodedData`."""
        return self.encoded.examples

    @property
    def stats(self) -> EncodeStats:
        """See `EncodedData`."""
        return self.encoded.stats

    @property
    def kept(self) -> tuple[int, ...]:
        """See `EncodedData`."""
        return self.encoded.kept

    def __len__(self) -> int:
        return len(self.encoded) if self._num_examples is None else self._num_examples


def encode_classification(
    rows: Rows,
    tokenizer: PreTrainedTokenizerBase,
    columns: ClassificationColumns,
    labels: LabelMap | None,
    max_length: int | None,
    origin: Origin | None = None,
) -> DeferredData:
    """Texts (or pairs of texts) and their targets. Checked now, tokenized when first used: none is ever dropped.

    Args:
        labels: None encodes texts alone, for prediction.
        max_length: tokens, special ones included; longer texts lose their end (of a pair, the longer one first).

    Raises:
        DataError: a text is missing or no text; a label is missing or unknown.
    """
    texts = _texts(rows, columns.text, origin)
    pairs = None if columns.text_pair is None else _texts(rows, columns.text_pair, origin)
    targets = None
    if labels is not None:
        if columns.label is None:
            raise ValueError("labels need a label column: call classification_columns(need_label=True)")
        targets = labels.encode(rows.column(columns.label, origin), rows.source, origin, rows.place_of)
    return DeferredData(len(texts), lambda: _tokenize(texts, pairs, targets, tokenizer, max_length))


def _tokenize(
    texts: list[str],
    pairs: list[str] | None,
    targets: Sequence[Any] | None,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int | None,
) -> EncodedData:
    examples: list[Example] = []
    lengths: list[int] = []
    num_truncated = 0
    for first in range(0, len(texts), _CHUNK):
        part = texts[first : first + _CHUNK]
        part_pairs = None if pairs is None else pairs[first : first + _CHUNK]
        encoded: Any = tokenizer(
            part, part_pairs, truncation=max_length is not None, max_length=max_length, verbose=False
        )
        names: list[str] = list(encoded.keys())
        full = _full_lengths(tokenizer, encoded, part, part_pairs, max_length)
        for i, ids in enumerate(encoded["input_ids"]):
            num_truncated += full[i] > len(ids)
            example: Example = {name: encoded[name][i] for name in names}
            if targets is not None:
                example["labels"] = targets[first + i]
            examples.append(example)
        lengths += full
    stats = EncodeStats(num_read=len(texts), num_truncated=num_truncated, lengths=tuple(lengths))
    return EncodedData(examples, stats, tuple(range(len(examples))))


def _full_lengths(
    tokenizer: PreTrainedTokenizerBase, encoded: Any, texts: list[str], pairs: list[str] | None, max_length: int | None
) -> list[int]:
    """Tokens before the cut, special ones included, without encoding everything a second time where that is avoidable.

    A fast tokenizer keeps what it cut off; of a pair, or from another tokenizer, the examples that fill `max_length`
    are encoded once more without a limit.
    """
    lengths = [len(ids) for ids in encoded["input_ids"]]
    if max_length is None:
        return lengths
    if encoded.encodings is not None and pairs is None:
        for i, encoding in enumerate(encoded.encodings):
            if lengths[i] >= max_length:
                rest = encoding.overflowing
                num_special = sum(encoding.special_tokens_mask)
                lengths[i] += sum(len(more) - num_special for more in rest)
        return lengths
    full = [i for i, length in enumerate(lengths) if length >= max_length]
    if full:
        again: Any = tokenizer([texts[i] for i in full], pairs and [pairs[i] for i in full], verbose=False)
        for i, ids in zip(full, again["input_ids"], strict=True):
            lengths[i] = len(ids)
    return lengths


def encode_causal_lm(
    rows: Rows,
    tokenizer: PreTrainedTokenizerBase,
    format: Format,
    *,
    columns: ColumnNames | None = None,
    system: str | None = None,
    train_on: TrainOn = "assistant",
    max_length: int | None = None,
    origin: Origin | None = None,
) -> EncodedData:
    """Conversations, prompt/completion pairs or plain texts as token ids and labels of equal length.

    Prompt and completion go through the chat template; with a tokenizer that has none they are joined as they are, and
    the completion ends with the end-of-text token. A plain text is trained in full and also ends with it.

    Args:
        system, train_on: see `frostline.data.chat.render_chats`; `train_on` has no meaning for plain text.
        max_length: tokens; longer examples lose their end. An example that keeps no label is dropped and counted. The
            first token never counts as a label, since no token before it predicts it.

    Raises:
        DataError: a column or text is missing, or the chat template cannot be used; see `render_chats`.
    """
    if format == "text":
        (name,) = key_columns(rows, format, columns, origin)
        encoded = _plain(tokenizer, _texts(rows, name, origin))
    elif format == "prompt_completion" and not getattr(tokenizer, "chat_template", None):
        prompt, completion = key_columns(rows, format, columns, origin)
        encoded = _joined(tokenizer, _texts(rows, prompt, origin), _texts(rows, completion, origin), system, train_on)
    else:
        conversations = to_messages(rows, format, columns, origin)
        encoded = list(render_chats(tokenizer, conversations, train_on, system, origin, rows.place_of))
    return _limit(encoded, max_length)


def _limit(encoded: Sequence[Encoded], max_length: int | None) -> EncodedData:
    examples: list[Example] = []
    kept: list[int] = []
    lengths: list[int] = []
    num_truncated = num_dropped = longest_dropped = 0
    enough: list[int] = []
    for index, example in enumerate(encoded):
        ids, labels = example.input_ids[:max_length], example.labels[:max_length]
        if all(label == IGNORED for label in labels[1:]):
            num_dropped += 1
            longest_dropped = max(longest_dropped, len(example.input_ids))
            enough += next(([i + 1] for i, label in enumerate(example.labels) if i and label != IGNORED), [])
            continue
        num_truncated += len(ids) < len(example.input_ids)
        examples.append({"input_ids": ids, "labels": labels})
        kept.append(index)
        lengths.append(len(example.input_ids))
    stats = EncodeStats(
        len(encoded),
        num_truncated=num_truncated,
        num_dropped=num_dropped,
        lengths=tuple(lengths),
        num_bare=sum(example.num_bare for example in encoded),
        longest_dropped=longest_dropped,
        enough=min(enough, default=None),
    )
    return EncodedData(examples, stats, tuple(kept))


def _plain(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[Encoded]:
    encoded: list[Encoded] = []
    for ids in _ids(tokenizer, texts, add_special_tokens=True):
        ids = _ended(tokenizer, ids)
        encoded.append(Encoded(ids, list(ids)))
    return encoded


def _joined(
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[str],
    completions: list[str],
    system: str | None,
    train_on: TrainOn,
) -> list[Encoded]:
    if system is not None:
        prompts = [f"{system}\n\n{prompt}" for prompt in prompts]
    # apart, as at inference: the prompt's tokens must not depend on what follows
    prompt_ids = _ids(tokenizer, prompts, add_special_tokens=True)
    completion_ids = _ids(tokenizer, completions, add_special_tokens=False)
    encoded: list[Encoded] = []
    for before, after in zip(prompt_ids, completion_ids, strict=True):
        if before and before[-1] == tokenizer.eos_token_id:
            before = before[:-1]  # some tokenizers end every text; this one goes on
        after = _ended(tokenizer, after)
        masked = list(before) if train_on == "all" else [IGNORED] * len(before)
        encoded.append(Encoded(before + after, masked + after))
    return encoded


def _ids(tokenizer: PreTrainedTokenizerBase, texts: list[str], *, add_special_tokens: bool) -> list[list[int]]:
    encoded: Any = tokenizer(texts, add_special_tokens=add_special_tokens, return_attention_mask=False, verbose=False)
    return [list(ids) for ids in encoded["input_ids"]]


def _ended(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[int]:
    end: Any = tokenizer.eos_token_id
    return ids if end is None or (ids and ids[-1] == end) else [*ids, end]


def _texts(rows: Rows, name: str, origin: Origin | None) -> list[str]:
    values = rows.column(name, origin)
    for index, value in enumerate(values):
        if not isinstance(value, str):
            kind = "nothing" if value is None else f"{value!r} ({type(value).__name__})"
            raise DataError(
                f"{rows.place_of(index)}: column {name!r} holds {kind}, not a text",
                where=place(rows.source, origin),
                possible="text in every row of that column",
                fix="correct or remove that row",
            )
    return list(values)


def count_labels(example: Mapping[str, Any]) -> int:
    """Number of tokens of a causal-LM example that a model is trained to predict."""
    return sum(label != IGNORED for label in example["labels"][1:])
