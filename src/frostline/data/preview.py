"""Preview: examples as a person reads them before training, with the trained tokens marked.

Knows encoded examples and the tokenizer; nothing of sources or models. Marks are characters and colour, so that they
survive a log file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from frostline.data.chat import IGNORED
from frostline.data.encode import EncodedData, count_labels
from frostline.data.labels import LabelMap

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

OPEN, CLOSE = "⟦", "⟧"
_TRAINED = "bold green"
_QUIET = "dim"


def render_examples(
    data: EncodedData,
    tokenizer: PreTrainedTokenizerBase,
    num: int,
    *,
    labels: LabelMap | None = None,
    max_length: int | None = None,
    max_characters: int = 2000,
) -> Text:
    """The first `num` examples and the counts of the whole, as text to print (`.plain` without colour).

    Args:
        labels: for classification: names the label of each example. Without it `labels` are per token, and trained
            tokens stand between ⟦ and ⟧.
        max_length: the limit that was used, to say where an example was cut.
        max_characters: longer texts are shown with their middle left out.
    """
    page = Text()
    for index, example in enumerate(data.examples[:num]):
        length, full = len(example["input_ids"]), data.stats.lengths[index]
        head = f"example {index + 1}: {length:,} tokens"
        if full > length:
            head += f", cut from {full:,}"
        if labels is not None and "labels" in example:
            head += f", label {_label(example['labels'], labels)}"
        elif "labels" in example:
            trained = count_labels(example)
            head += f", {trained:,} trained"
        page.append(head + "\n", style="bold")
        body = _plain(example, tokenizer) if labels is not None else _marked(example, tokenizer)
        page.append_text(_shorten(body, max_characters))
        page.append("\n\n")
    page.append(_summary(data, max_length), style=_QUIET)
    return page


def _label(value: Any, labels: LabelMap) -> str:
    if labels.problem == "regression":
        return f"{value:g}"
    if labels.problem == "single_label":
        return labels.names[value]
    return ", ".join(name for name, on in zip(labels.names, value, strict=True) if on) or "(none)"


def _plain(example: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> Text:
    return Text(str(tokenizer.decode(example["input_ids"])))


def _marked(example: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> Text:
    body = Text()
    ids: list[int] = example["input_ids"]
    flags = [label != IGNORED for label in example.get("labels", [IGNORED] * len(ids))]
    start = 0
    for end in range(1, len(ids) + 1):
        if end < len(ids) and flags[end] == flags[start]:
            continue
        piece = str(tokenizer.decode(ids[start:end], clean_up_tokenization_spaces=False))
        body.append(f"{OPEN}{piece}{CLOSE}" if flags[start] else piece, style=_TRAINED if flags[start] else None)
        start = end
    return body


def _shorten(body: Text, limit: int) -> Text:
    if len(body) <= limit:
        return body
    half = limit // 2
    left_out = len(body) - 2 * half
    return Text.assemble(body[:half], (f" ... {left_out:,} characters ... ", _QUIET), body[len(body) - half :])


def _summary(data: EncodedData, max_length: int | None) -> str:
    text = data.stats.render(max_length)
    lengths = sorted(data.stats.lengths)
    if lengths:
        middle, high = lengths[len(lengths) // 2], lengths[int(0.95 * (len(lengths) - 1))]
        text += f"\ntokens per example: median {middle:,}, 95 % up to {high:,}, longest {lengths[-1]:,}"
    return text + "\n"
