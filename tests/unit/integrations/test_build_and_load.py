"""The meta model and the loaded model must agree in everything but values."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertForSequenceClassification

from frostline.errors import ModelError
from frostline.integrations.hf_models import (
    Head,
    build_meta,
    load_model,
    load_tokenizer,
    model_window,
    read_config,
    resolve_location,
)

LABELS = Head("sequence_classification", ("neg", "neutral", "pos"), "single_label", 0)
CAUSAL = Head("causal_lm")


def settings(**changes: Any) -> Any:
    values = {"dtype": "auto", "attn_implementation": "sdpa", "trust_remote_code": False} | changes
    return SimpleNamespace(**values)


def shapes(model: torch.nn.Module) -> Mapping[str, tuple[torch.Size, torch.dtype, bool]]:
    named = model.named_parameters(remove_duplicate=False)
    return {name: (tensor.shape, tensor.dtype, tensor.requires_grad) for name, tensor in named}


def edit_weights(folder: Path, change: Any) -> None:
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, {"format": "pt"})


@pytest.fixture
def bert_copy(bert_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bert_folder, tmp_path / "copy"))


@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16"])
def test_classifier_head_is_new_and_meta_equals_loaded(bert_folder: Path, dtype: str) -> None:
    location = resolve_location(str(bert_folder))
    meta = build_meta(location, settings(dtype=dtype), LABELS)
    assert all(tensor.is_meta for tensor in [*meta.model.parameters(), *meta.model.buffers()])
    assert meta.new == {"classifier.weight", "classifier.bias"}
    loaded = load_model(location, settings(dtype=dtype), LABELS, expected=meta)
    assert loaded.new == meta.new
    assert shapes(loaded.model) == shapes(meta.model)
    assert loaded.dtype == (torch.bfloat16 if dtype == "bfloat16" else torch.float32)
    assert loaded.files == [bert_folder / "model.safetensors"]
    assert loaded.model.config.id2label == {0: "neg", 1: "neutral", 2: "pos"}
    assert loaded.model.config.problem_type == "single_label_classification"


def test_tied_head_is_not_new(llama_folder: Path) -> None:
    meta = build_meta(resolve_location(str(llama_folder)), settings(), CAUSAL)
    assert meta.new == frozenset()
    assert meta.model.lm_head.weight is meta.model.model.embed_tokens.weight


def test_auto_dtype_is_that_of_the_files_not_of_the_config(bert_copy: Path) -> None:
    edit_weights(bert_copy, lambda tensors: {name: tensor.bfloat16() for name, tensor in tensors.items()})
    meta = build_meta(resolve_location(str(bert_copy)), settings(), LABELS)
    assert {dtype for _, dtype, _ in shapes(meta.model).values()} == {torch.bfloat16}


def test_new_parameters_depend_on_the_seed_alone(bert_folder: Path) -> None:
    location = resolve_location(str(bert_folder))
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = load_model(location, settings(), LABELS, seed=5).model.classifier.weight
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again = load_model(location, settings(), LABELS, seed=5).model.classifier.weight
    other = load_model(location, settings(), LABELS, seed=6).model.classifier.weight
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_head_of_another_size_starts_new_with_a_note(bert_folder: Path, tmp_path: Path) -> None:
    model = BertForSequenceClassification.from_pretrained(bert_folder, num_labels=2)
    model.save_pretrained(tmp_path / "two")
    location = resolve_location(str(tmp_path / "two"))
    meta = build_meta(location, settings(), LABELS)
    assert meta.new == {"classifier.weight", "classifier.bias"}
    assert "classifier.weight: the files hold shape [2, 16], this task needs [3, 16]: starts new" in meta.notes
    assert load_model(location, settings(), LABELS, expected=meta).new == meta.new


def test_head_of_the_same_size_is_kept(bert_folder: Path, tmp_path: Path) -> None:
    model = BertForSequenceClassification.from_pretrained(bert_folder, num_labels=3)
    model.save_pretrained(tmp_path / "three")
    location = resolve_location(str(tmp_path / "three"))
    assert build_meta(location, settings(), LABELS).new == frozenset()
    assert torch.equal(load_model(location, settings(), LABELS).model.classifier.weight, model.classifier.weight)


def test_tensors_without_a_place_are_noted(bert_copy: Path) -> None:
    edit_weights(bert_copy, lambda tensors: tensors | {"cls.predictions.bias": torch.zeros(4)})
    meta = build_meta(resolve_location(str(bert_copy)), settings(), LABELS)
    assert meta.unused == ("cls.predictions.bias",)
    assert "1 tensors of the base files have no place in this model: cls.predictions.bias" in meta.notes


def test_old_key_names_are_converted_as_in_the_load(bert_copy: Path) -> None:
    def old_names(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {
            "bert." + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t
            for name, t in tensors.items()
        }

    edit_weights(bert_copy, old_names)
    location = resolve_location(str(bert_copy))
    meta = build_meta(location, settings(), LABELS)
    assert meta.new == {"classifier.weight", "classifier.bias"}
    assert load_model(location, settings(), LABELS).new == meta.new


def test_load_that_leaves_other_parameters_new_is_an_error(bert_copy: Path) -> None:
    location = resolve_location(str(bert_copy))
    meta = build_meta(location, settings(), LABELS)
    edit_weights(bert_copy, lambda tensors: {k: v for k, v in tensors.items() if k != "pooler.dense.bias"})
    with pytest.raises(ModelError, match=r"also \['bert\.pooler\.dense\.bias'\]"):
        load_model(location, settings(), LABELS, expected=meta)


def test_body_of_another_shape_is_an_error(bert_copy: Path) -> None:
    edit_weights(bert_copy, lambda tensors: tensors | {"pooler.dense.bias": torch.zeros(7)})
    with pytest.raises(ModelError, match=r"bert\.pooler\.dense\.bias has shape \[7\].* and \[16\] in the model"):
        build_meta(resolve_location(str(bert_copy)), settings(), LABELS)


def test_files_of_another_model_are_an_error(bert_copy: Path) -> None:
    save_file({"lora_A": torch.zeros(2)}, bert_copy / "model.safetensors")
    with pytest.raises(ModelError, match=r"none of the 1 tensors(.|\n)*lora_A"):
        build_meta(resolve_location(str(bert_copy)), settings(), LABELS)


def test_truncated_weights(bert_copy: Path) -> None:
    file = bert_copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match="truncated or not a safetensors file"):
        build_meta(resolve_location(str(bert_copy)), settings(), LABELS)


def test_pointer_instead_of_weights(bert_copy: Path) -> None:
    (bert_copy / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ModelError, match=r"truncated(.|\n)*Git LFS pointer"):
        load_model(resolve_location(str(bert_copy)), settings(), LABELS)


def test_pickled_weights_are_refused(bert_copy: Path) -> None:
    (bert_copy / "model.safetensors").rename(bert_copy / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"no model\.safetensors(.|\n)*a pickle(.|\n)*save_pretrained"):
        build_meta(resolve_location(str(bert_copy)), settings(), LABELS)


def test_sharded_weights_and_a_missing_shard(bert_folder: Path, tmp_path: Path) -> None:
    BertForSequenceClassification.from_pretrained(bert_folder).save_pretrained(tmp_path, max_shard_size="5KB")
    location = resolve_location(str(tmp_path))
    loaded = load_model(location, settings(), Head("sequence_classification", ("a", "b"), "single_label"))
    assert len(loaded.files) > 1
    loaded.files[1].unlink()
    with pytest.raises(ModelError, match=r"weight file 'model-00002.*missing \(1 of"):
        load_model(location, settings(), LABELS)


def test_unknown_architecture(bert_copy: Path) -> None:
    (bert_copy / "config.json").write_text(json.dumps({"model_type": "no_such_type"}))
    with pytest.raises(ModelError, match=r"config\.json of model .* cannot be used"):
        build_meta(resolve_location(str(bert_copy)), settings(), LABELS)


def test_architecture_without_this_head(bert_copy: Path) -> None:
    config = json.loads((bert_copy / "config.json").read_text())
    (bert_copy / "config.json").write_text(json.dumps(config | {"model_type": "vit"}))
    with pytest.raises(ModelError, match="no causal_lm form"):
        build_meta(resolve_location(str(bert_copy)), settings(), CAUSAL)


def test_flash_attention_that_is_not_there(bert_folder: Path) -> None:
    with pytest.raises(ModelError, match=r"flash_attention_2 cannot be used here(.|\n)*set model\.attn_impl"):
        build_meta(resolve_location(str(bert_folder)), settings(attn_implementation="flash_attention_2"), LABELS)


def test_unknown_hub_model_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match=r"'no-org/no-model' is neither a folder here nor in the local Hub cache"):
        build_meta(resolve_location("no-org/no-model"), settings(), LABELS)


def test_window(bert_folder: Path, llama_folder: Path) -> None:
    windows = [model_window(read_config(resolve_location(str(f)), settings())) for f in (bert_folder, llama_folder)]
    assert windows == [32, 64]


def test_window_of_roberta_leaves_the_padding_offset_out(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1})
    )
    assert model_window(read_config(resolve_location(str(tmp_path)), settings())) == 512


def test_tokenizer_and_its_template(llama_folder: Path, tmp_path: Path) -> None:
    location = resolve_location(str(llama_folder))
    assert load_tokenizer(location).pad_token == "<pad>"
    (tmp_path / "short.jinja").write_text("{{ messages[0]['content'] }}")
    chosen: Any = SimpleNamespace(name_or_path=None, chat_template=str(tmp_path / "short.jinja"))
    tokenizer = load_tokenizer(location, chosen)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi"


def test_template_file_that_is_not_there(llama_folder: Path) -> None:
    chosen: Any = SimpleNamespace(name_or_path=None, chat_template="no/such.jinja")
    with pytest.raises(ModelError, match=r"chat template 'no/such\.jinja' is neither"):
        load_tokenizer(resolve_location(str(llama_folder)), chosen)


def test_folder_without_tokenizer(bert_copy: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (bert_copy / name).unlink()
    with pytest.raises(ModelError, match=r"no tokenizer can be loaded(.|\n)*tokenizer\.name_or_path"):
        load_tokenizer(resolve_location(str(bert_copy)))
