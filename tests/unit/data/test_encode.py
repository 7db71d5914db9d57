"""Encode: what is cut, what is dropped, and both counted."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from frostline.data.chat import IGNORED
from frostline.data.encode import EncodeStats, count_labels, encode_causal_lm, encode_classification
from frostline.data.formats import Columns, classification_columns
from frostline.data.labels import LabelMap
from frostline.data.rows import Rows
from frostline.errors import DataError


def tokens(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> str:
    return " ".join(tokenizer.convert_ids_to_tokens(ids))


def test_classification_cuts_and_counts(tokenizer: PreTrainedTokenizerFast) -> None:
    rows = Rows({"text": ["a b", "a b c d e", "a b c d", ""], "label": ["x", "y", "x", "y"]})
    labels = LabelMap.from_values(rows.column("label"))
    data = encode_classification(rows, tokenizer, classification_columns(rows), labels, max_length=6)
    assert [tokens(tokenizer, e["input_ids"]) for e in data.examples] == [
        "[CLS] a b [SEP]",
        "[CLS] a b c d [SEP]",
        "[CLS] a b c d [SEP]",
        "[CLS] [SEP]",
    ]
    assert [e["labels"] for e in data.examples] == [0, 1, 0, 1]
    assert all(len(e["attention_mask"]) == len(e["input_ids"]) for e in data.examples)
    assert data.stats == EncodeStats(num_read=4, num_truncated=1, lengths=(4, 7, 6, 2))
    assert data.stats.render(6) == "4 read, 1 cut at 6 tokens"


def test_lengths_before_the_cut_equal_an_uncut_encoding(tokenizer: PreTrainedTokenizerFast) -> None:
    rows = Rows({"text": ["a " * n for n in range(1, 40)]})
    columns = classification_columns(rows, need_label=False)
    cut = encode_classification(rows, tokenizer, columns, None, max_length=8)
    whole = encode_classification(rows, tokenizer, columns, None, max_length=None)
    assert cut.stats.lengths == whole.stats.lengths == tuple(n + 2 for n in range(1, 40))
    assert cut.stats.num_truncated == sum(n + 2 > 8 for n in range(1, 40))
    assert whole.stats.num_truncated == 0
    assert "labels" not in cut.examples[0]


def test_pairs(tokenizer: PreTrainedTokenizerFast) -> None:
    rows = Rows({"text": ["a", "a b c d e"], "text_pair": ["b", "hi"], "label": ["x", "y"]})
    labels = LabelMap.from_values(rows.column("label"))
    data = encode_classification(rows, tokenizer, classification_columns(rows), labels, max_length=7)
    assert [tokens(tokenizer, e["input_ids"]) for e in data.examples] == [
        "[CLS] a [SEP] b [SEP]",
        "[CLS] a b c [SEP] hi [SEP]",
    ]
    assert data.stats.lengths == (5, 9)
    assert data.stats.num_truncated == 1


def test_unknown_label_names_the_source(tokenizer: PreTrainedTokenizerFast) -> None:
    rows = Rows({"text": ["a"], "label": ["z"]}, "valid.csv")
    with pytest.raises(DataError, match=r"valid\.csv has labels that the training data never had: 'z'"):
        encode_classification(rows, tokenizer, classification_columns(rows), LabelMap(("x", "y"), "single_label"), 8)


@pytest.mark.parametrize("value", [None, 3])
def test_a_text_that_is_none(tokenizer: PreTrainedTokenizerFast, value: object) -> None:
    rows = Rows({"text": ["a", value]}, "t.jsonl")
    with pytest.raises(DataError, match=r"t\.jsonl, row 1: column 'text' holds (nothing|3 \(int\)), not a text"):
        encode_classification(rows, tokenizer, classification_columns(rows, need_label=False), None, 8)


def test_conversations_that_keep_no_label_are_dropped_and_counted(tokenizer: PreTrainedTokenizerFast) -> None:
    def talk(question: str, answer: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]

    rows = Rows({"messages": [talk("hi", "hello"), talk("a " * 20, "b"), talk("hi", "a b c d e"), talk("hi", "x")[:1]]})
    data = encode_causal_lm(rows, tokenizer, "messages", max_length=12)
    assert (data.stats.num_read, data.stats.num_dropped, data.stats.num_truncated) == (4, 2, 1)
    assert data.kept == (0, 2)
    assert [len(e["input_ids"]) for e in data.examples] == [12, 12]
    assert data.stats.lengths == (12, 16)
    assert "2 dropped (no label left)" in data.stats.render(12)
    assert all(len(e["labels"]) == len(e["input_ids"]) for e in data.examples)


def test_pairs_go_through_the_chat_template(tokenizer: PreTrainedTokenizerFast) -> None:
    rows = Rows({"q": ["hi"], "a": ["hello"]})
    data = encode_causal_lm(
        rows, tokenizer, "prompt_completion", columns=Columns(prompt="q", completion="a"), system="be nice"
    )
    assert tokens(tokenizer, data.examples[0]["input_ids"]).startswith("<s> system \n be nice </s> \n <s> user \n hi")
    assert count_labels(data.examples[0]) == 2


def test_pairs_without_a_template_are_joined(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = None
    rows = Rows({"prompt": ["hi"], "completion": ["hello there"]})
    (example,) = encode_causal_lm(rows, tokenizer, "prompt_completion").examples
    assert tokens(tokenizer, example["input_ids"]) == "[CLS] hi [SEP] hello there </s>"
    assert example["labels"][:3] == [IGNORED] * 3
    assert example["labels"][3:] == example["input_ids"][3:]
    (everything,) = encode_causal_lm(rows, tokenizer, "prompt_completion", train_on="all").examples
    assert everything["labels"] == everything["input_ids"]


def test_text_is_trained_in_full_and_ends(tokenizer: PreTrainedTokenizerFast) -> None:
    rows = Rows({"text": ["a b", ""]})
    data = encode_causal_lm(rows, tokenizer, "text")
    assert tokens(tokenizer, data.examples[0]["input_ids"]) == "[CLS] a b [SEP] </s>"
    assert data.examples[0]["labels"] == data.examples[0]["input_ids"]


def test_a_single_token_predicts_nothing_and_is_dropped(tokenizer: PreTrainedTokenizerFast) -> None:
    data = encode_causal_lm(Rows({"text": ["a b c"]}), tokenizer, "text", max_length=1)
    assert (len(data), data.stats.num_dropped) == (0, 1)


def test_what_would_have_kept_a_label_is_told(tokenizer: PreTrainedTokenizerFast) -> None:
    talk = [{"role": "user", "content": "a b c"}, {"role": "assistant", "content": "d e"}]
    rows = Rows({"messages": [talk, talk[:1], [{**talk[0], "content": "a"}, talk[1]]]})
    stats = encode_causal_lm(rows, tokenizer, "messages", max_length=4).stats
    assert (stats.num_dropped, stats.longest_dropped) == (3, 15)
    assert stats.enough is not None
    assert len(encode_causal_lm(rows, tokenizer, "messages", max_length=stats.enough)) == 1
    assert len(encode_causal_lm(rows, tokenizer, "messages", max_length=stats.enough - 1)) == 0
    assert encode_causal_lm(rows.select([1]), tokenizer, "messages").stats.enough is None


def test_one_duplicate() -> None:
    assert EncodeStats(num_read=2, num_duplicates=1).render() == "2 read, 1 duplicate out"
    assert EncodeStats(num_read=3, num_duplicates=2).render() == "3 read, 2 duplicates out"
