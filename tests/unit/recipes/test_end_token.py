"""Classifiers of encoder-decoder models read the hidden state of the end token, so every text needs one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import BartConfig, PretrainedConfig, PreTrainedTokenizerBase

from frostline.config import load_config
from frostline.errors import ModelError
from frostline.integrations.hf_models import load_tokenizer, resolve_location
from frostline.recipes import PreparedData, find_recipe


def prepare(
    tmp_path: Path,
    tokenizer: PreTrainedTokenizerBase,
    model_config: PretrainedConfig,
    tokenizer_name: str | None = None,
) -> PreparedData:
    rows = [{"text": f"good {letter}", "label": "xy"[index % 2]} for index, letter in enumerate("abcdefgh")]
    data = tmp_path / "train.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    config = {"recipe": "sequence_classification", "model": "some-bart", "data": {"train": str(data)}}
    loaded = load_config({**config, "tokenizer": {"name_or_path": tokenizer_name}})
    return find_recipe("sequence_classification").prepare_data(loaded.config, loaded.origins, tokenizer, model_config)


def test_a_tokenizer_without_an_end_token_is_refused(tmp_path: Path, llama_folder: Path) -> None:
    tokenizer = load_tokenizer(resolve_location(str(llama_folder)))
    with pytest.raises(ModelError) as raised:
        prepare(tmp_path, tokenizer, BartConfig(eos_token_id=3))
    (problem,) = raised.value.problems
    assert (
        problem.what == "the tokenizer puts no end token (</s>, id 3) into a text, and the classifier of bart reads it"
    )
    assert problem.where == "model.name_or_path"
    assert "tokenizer.name_or_path" in str(problem.fix)
    with pytest.raises(ModelError) as raised:
        prepare(tmp_path, tokenizer, BartConfig(eos_token_id=3), "other")
    assert raised.value.problems[0].where == "tokenizer.name_or_path"


def test_a_tokenizer_that_ends_texts_is_taken(tmp_path: Path, bert_folder: Path) -> None:
    tokenizer = load_tokenizer(resolve_location(str(bert_folder)))  # ends them with [SEP]
    end = tokenizer.sep_token_id
    assert isinstance(end, int)
    data = prepare(tmp_path, tokenizer, BartConfig(eos_token_id=end))
    assert all(example["input_ids"][-1] == end for example in data.train.examples)


def test_a_decoder_needs_none(tmp_path: Path, llama_folder: Path) -> None:
    tokenizer = load_tokenizer(resolve_location(str(llama_folder)))
    assert prepare(tmp_path, tokenizer, BartConfig(eos_token_id=3, is_encoder_decoder=False)).num_read == 8
