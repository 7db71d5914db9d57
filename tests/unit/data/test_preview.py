"""Preview: marks around what is trained, lengths, what was cut."""

from __future__ import annotations

from transformers import PreTrainedTokenizerFast

from frostline.data.encode import encode_causal_lm, encode_classification
from frostline.data.formats import classification_columns
from frostline.data.labels import LabelMap
from frostline.data.preview import render_examples
from frostline.data.rows import Rows


def test_trained_tokens_are_marked(tokenizer: PreTrainedTokenizerFast) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "a b c d e"}]
    rows = Rows({"messages": [messages, messages[:1], messages]})
    data = encode_causal_lm(rows, tokenizer, "messages", max_length=12)
    page = render_examples(data, tokenizer, 1, max_length=12).plain
    assert "example 1: 12 tokens, cut from 16, 3 trained" in page
    assert "⟦a b c⟧" in page
    assert page.count("⟦") == 1
    assert "example 2" not in page
    assert "3 read, 2 cut at 12 tokens, 1 dropped (no label left)" in page
    assert "longest 16" in page


def test_classification_shows_label_names(tokenizer: PreTrainedTokenizerFast) -> None:
    rows = Rows({"text": ["hi", "bye"], "label": ["open", "close"]})
    labels = LabelMap.from_values(rows.column("label"))
    data = encode_classification(rows, tokenizer, classification_columns(rows), labels, 8)
    page = render_examples(data, tokenizer, 5, labels=labels).plain
    assert "example 1: 3 tokens, label open" in page
    assert "example 2: 3 tokens, label close" in page
    assert "⟦" not in page


def test_other_targets_and_long_texts(tokenizer: PreTrainedTokenizerFast) -> None:
    rows = Rows({"text": ["a " * 500], "label": [["x", "y"]]})
    labels = LabelMap.from_values(rows.column("label"))
    data = encode_classification(rows, tokenizer, classification_columns(rows), labels, None)
    page = render_examples(data, tokenizer, 1, labels=labels, max_characters=50).plain
    assert "label x, y" in page
    assert " characters ... " in page
    assert len(page) < 300
    numbers = LabelMap(("value",), "regression")
    rows = Rows({"text": ["a"], "label": [2.5]})
    data = encode_classification(rows, tokenizer, classification_columns(rows), numbers, None)
    assert "label 2.5" in render_examples(data, tokenizer, 1, labels=numbers).plain
