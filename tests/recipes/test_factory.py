"""Runs of models that a factory builds: trained, resumed, opened again, and refused with other weights."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from frostline.checkpoint import Manifest
from frostline.errors import CheckpointError, ModelError
from frostline.recipes.finished import evaluate_run

MODELS = """
import torch
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

SHIFT = 0.0
SIZES = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def bert(num_labels=2):
    model = BertForSequenceClassification(BertConfig(**SIZES, max_position_embeddings=48, num_labels=num_labels))
    with torch.no_grad():
        model.bert.pooler.dense.weight.add_(SHIFT)
    return model


def llama():
    return LlamaForCausalLM(LlamaConfig(**SIZES, max_position_embeddings=64))


def left_on_meta():
    with torch.device("meta"):
        return bert()
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module `run_models`, in the current directory."""
    (tmp_path / "run_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield lambda: sys.modules["run_models"]
    sys.modules.pop("run_models", None)


@pytest.fixture
def from_factory(classify: Any, bert_folder: Path) -> Callable[..., dict[str, Any]]:
    """As `classify`, on the BERT of the factory, with its head thawed."""

    def make(name: str = "run_models:bert", **sections: Any) -> dict[str, Any]:
        config = classify(**{"freeze_config": {"unfreeze_modules": ["classifier"]}, **sections})
        arguments = config["model"] if isinstance(config["model"], dict) else {}
        config["model"] = {"factory": name, "trust_code": True, **arguments}
        config["tokenizer"] = str(bert_folder)
        return config

    return make


def test_a_run_of_a_factory_resumes_bit_for_bit_and_opens_again(
    models: Any, from_factory: Any, launch: Any, resumes_bit_for_bit: Any
) -> None:
    config = from_factory()
    run = launch(config)
    resumes_bit_for_bit(run, config, step=2)
    assert evaluate_run(run.open(), parts=("validation",))[0].metrics["loss"] > 0
    base = Manifest.read(run.checkpoint).base
    assert base.name_or_path == "factory:run_models:bert"
    assert base.fingerprint_kind == "model-sampled"
    record = json.loads((run.checkpoint / "adapter" / "adapter_config.json").read_text())
    assert record["base_model_name_or_path"] == "factory:run_models:bert"
    assert "frostline, with the factory at hand" in run.planned.facts["loads in"]


def test_a_factory_that_gives_other_weights_is_another_base(models: Any, from_factory: Any, launch: Any) -> None:
    config = from_factory()
    run = launch(config)
    models().SHIFT = 1.0
    with pytest.raises(CheckpointError, match=r"belongs to another base.*other weights"):
        launch(config, "training.max_steps=4", mode="resume")
    with pytest.raises(CheckpointError, match=r"belongs to another base.*other weights"):
        run.model()


def test_peft_loads_the_adapter_on_a_model_that_the_factory_builds(
    models: Any, from_factory: Any, launch: Any, in_peft: Any
) -> None:
    run = launch(from_factory())
    torch.manual_seed(0)  # training.seed
    bare = models().bert().eval()
    ids = torch.arange(8)[None]
    with torch.no_grad():
        ours = run.model()(input_ids=ids).logits
        theirs = in_peft(bare, run.checkpoint / "adapter")(input_ids=ids).logits
    assert torch.equal(ours, theirs)
    assert load_file(run.checkpoint / "adapter" / "adapter_model.safetensors")


def test_a_language_model_of_a_factory_trains(models: Any, converse: Any, llama_folder: Path, launch: Any) -> None:
    config = converse()
    config["model"] = {"factory": "run_models:llama", "trust_code": True, "dtype": "float64"}
    config["tokenizer"] = str(llama_folder)
    run = launch(config)
    assert len(run.losses) == 4
    assert Manifest.read(run.checkpoint).base.dtype == "float64"


def test_a_classifier_with_another_number_of_outputs_is_refused(models: Any, from_factory: Any, launch: Any) -> None:
    config = from_factory(model={"factory_arguments": {"num_labels": 3}})
    with pytest.raises(ModelError, match="the factory has 3 outputs, and the data has 2 labels"):
        launch(config)


def test_a_model_left_without_values_is_refused(models: Any, from_factory: Any, launch: Any) -> None:
    with pytest.raises(ModelError, match="tensors of the model that run_models:left_on_meta returns have no values"):
        launch(from_factory("run_models:left_on_meta"))
