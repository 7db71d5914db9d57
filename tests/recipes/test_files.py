"""What a run leaves for others: nothing frozen, equal logits in peft and after merging, ties as they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, LlamaForCausalLM

import frostline as fl
from frostline.errors import AdapterError, CheckpointError
from frostline.recipes.exporting import export_run

Make = Callable[..., dict[str, Any]]


def inputs(run: Any, *texts: str) -> dict[str, torch.Tensor]:
    return dict(run.planned.assembly.tokenizer(list(texts), padding=True, return_tensors="pt"))


def logits(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(**batch).logits


def bare(run: Any) -> torch.nn.Module:
    return run.planned.assembly.load_model().model


def assert_no_frozen_tensor(run: Any) -> None:
    plan = run.planned.plan
    expected = {name.replace(".default.", ".") for name in plan.trainable}
    assert {name.removeprefix("base_model.model.") for name in run.tensors} == expected
    files = list(run.checkpoint.rglob("*.safetensors"))
    assert len(files) == 2
    for file in files:
        with safe_open(file, "pt") as content:
            names = list(content.keys())
        assert names
        if "state" in file.parts:
            assert {name.rpartition("/")[0] for name in names} <= set(plan.trainable)


def test_case_107_checkpoint_of_an_adapter_holds_no_frozen_tensor(classify: Make, launch: Any) -> None:
    assert_no_frozen_tensor(launch(classify()))


def test_case_107_checkpoint_of_a_run_without_adapter_holds_no_frozen_tensor(classify: Make, launch: Any) -> None:
    freeze = {"freeze_modules": "bert", "unfreeze_modules": [{"layers": "-1:"}]}
    assert_no_frozen_tensor(launch(classify(peft=None, freeze_config=freeze)))


@pytest.mark.parametrize("peft", [{}, {"use_rslora": True, "alpha": 3}, {"target_modules": "all-linear"}], ids=str)
def test_case_59_and_111_peft_opens_every_folder_that_a_run_leaves(
    peft: dict[str, Any], classify: Make, launch: Any, in_peft: Any, tmp_path: Path
) -> None:
    """The run's link, the checkpoint, the export and the library write the same layout; the head is trained once."""
    run = launch(classify(peft=peft, evaluation={"every": "never"}))
    batch = inputs(run, "good w1 w2", "bad")
    expected = logits(run.model(), batch)
    exported = export_run(run.open(), "peft", tmp_path / "exported")
    saved = fl.save_adapter(run.model(), tmp_path / "saved", task_type="SEQ_CLS")
    assert not torch.allclose(expected, logits(bare(run), batch), atol=1e-3)
    for folder in (run.folder / "adapter", run.checkpoint / "adapter", exported, saved):
        torch.testing.assert_close(logits(in_peft(bare(run), folder), batch), expected, rtol=0, atol=1e-5)
        ours, _ = fl.load_adapter(bare(run), folder)
        assert torch.equal(logits(ours, batch), expected)
    config = json.loads((run.folder / "adapter" / "adapter_config.json").read_text())
    assert config["modules_to_save"] == ["classifier"]
    assert not [name for name in run.tensors if "classifier" in name and "lora" in name]
    assert {"base_model.model.classifier.weight", "base_model.model.classifier.bias"} <= set(run.tensors)


def test_case_117_adapter_and_thawed_modules_are_one_file(
    classify: Make, launch: Any, resumes_bit_for_bit: Any, in_peft: Any
) -> None:
    """LoRA in layer 0, all of layer 1 and one lone bias: saved is what trained, and a resume needs nothing else."""
    config = classify(
        peft={"target_modules": [{"path": "bert.encoder.layer.0.attention.self.query"}]},
        freeze_config={"unfreeze_modules": [{"layers": 1}, {"param": "bert.embeddings.LayerNorm.bias"}]},
        evaluation={"every": "never"},
    )
    run = launch(config)
    assert_no_frozen_tensor(run)
    assert len([name for name in run.tensors if "lora" in name]) == 2
    batch = inputs(run, "good w1 w2", "bad")
    expected = logits(run.model(), batch)
    torch.testing.assert_close(logits(in_peft(bare(run), run.folder / "adapter"), batch), expected, rtol=0, atol=1e-5)
    resumes_bit_for_bit(run, config, step=2)


def test_merged_classifier_loads_in_transformers(classify: Make, launch: Any, tmp_path: Path) -> None:
    run = launch(classify(peft={"target_modules": "all-linear"}))
    folder = export_run(run.open(), "merged", tmp_path / "merged")
    theirs = AutoModelForSequenceClassification.from_pretrained(folder)
    batch = inputs(run, "good w1 w2", "bad")
    torch.testing.assert_close(logits(theirs, batch), logits(run.model(), batch), rtol=0, atol=1e-5)
    assert theirs.config.id2label == {0: "neg", 1: "pos"}
    assert not [name for name in theirs.state_dict() if "lora" in name]


def test_case_133_merged_tied_llama_stays_tied(converse: Make, launch: Any, tmp_path: Path) -> None:
    run = launch(converse())
    folder = export_run(run.open(), "merged", tmp_path / "merged")
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    batch = inputs(run, "hello w1 w2", "good w5 w3 w1")
    torch.testing.assert_close(logits(theirs, batch), logits(run.model(), batch), rtol=0, atol=1e-5)
    assert theirs.config.tie_word_embeddings
    assert theirs.lm_head.weight is theirs.model.embed_tokens.weight
    written = load_file(folder / "model.safetensors")
    assert "lm_head.weight" not in written
    assert "model.embed_tokens.weight" in written
    assert not (folder / "model.safetensors.index.json").exists()


def test_case_67_a_tied_pair_trains_as_one_tensor_and_is_saved_once(
    converse: Make, launch: Any, resumes_bit_for_bit: Any, tmp_path: Path
) -> None:
    config = converse(freeze_config={"unfreeze_modules": ["embed_tokens"]}, evaluation={"every": "never"})
    run = launch(config)
    ours = run.model()
    assert ours.lm_head.weight is ours.model.embed_tokens.weight
    assert [name for name in run.tensors if "lora" not in name] == ["base_model.model.model.embed_tokens.weight"]
    assert not torch.equal(ours.lm_head.weight, bare(run).lm_head.weight)
    batch = inputs(run, "hello w1 w2", "good w5 w3 w1")
    expected = logits(ours, batch)
    merged = AutoModelForCausalLM.from_pretrained(export_run(run.open(), "merged", tmp_path / "merged"))
    torch.testing.assert_close(logits(merged, batch), expected, rtol=0, atol=1e-5)
    resumes_bit_for_bit(run, config, step=2)


def test_case_66_one_of_a_tied_pair_is_not_adapted(converse: Make, launch: Any) -> None:
    with pytest.raises(AdapterError, match=r"lm_head cannot be adapted(.|\n)*model\.embed_tokens\.weight"):
        launch(converse(peft={"target_modules": ["*_proj", "lm_head"]}))


def test_case_66_and_68_a_pair_that_was_trained_apart_is_merged_apart(
    converse: Make, launch: Any, tmp_path: Path
) -> None:
    """The class lists `lm_head` as tied, the config says it is not; equal values at the start change nothing."""
    model = LlamaForCausalLM.from_pretrained(converse()["model"], tie_word_embeddings=False)
    model.lm_head.weight = torch.nn.Parameter(model.model.embed_tokens.weight.detach().clone())
    model.save_pretrained(tmp_path / "untied")
    config = converse(
        model={"name_or_path": str(tmp_path / "untied")},
        tokenizer={"name_or_path": converse()["model"]},
        peft={"target_modules": ["*_proj", "lm_head"]},
        freeze_config={"unfreeze_modules": ["embed_tokens"]},
    )
    run = launch(config)
    batch = inputs(run, "hello w1 w2", "good w5 w3 w1")
    theirs = AutoModelForCausalLM.from_pretrained(export_run(run.open(), "merged", tmp_path / "merged"))
    torch.testing.assert_close(logits(theirs, batch), logits(run.model(), batch), rtol=0, atol=1e-5)
    assert theirs.config.tie_word_embeddings is False
    assert not torch.equal(theirs.lm_head.weight, theirs.model.embed_tokens.weight)


def test_full_fine_tuning_resumes_and_exports(
    classify: Make, launch: Any, resumes_bit_for_bit: Any, tmp_path: Path
) -> None:
    config = classify(peft=None)
    run = launch(config)
    folder = export_run(run.open(), "merged", tmp_path / "merged")
    batch = inputs(run, "good w1 w2", "bad")
    theirs = AutoModelForSequenceClassification.from_pretrained(folder)
    torch.testing.assert_close(logits(theirs, batch), logits(run.model(), batch), rtol=0, atol=1e-6)
    with pytest.raises(CheckpointError, match="has no adapter"):
        export_run(run.open(), "peft", tmp_path / "peft")
    resumes_bit_for_bit(run, config, step=2)


def test_case_106_spare_rows_of_the_embedding_stay(converse: Make, launch: Any, tmp_path: Path) -> None:
    """The embedding has more rows than the tokenizer has words; nothing shrinks it, also when it is trained."""
    base = converse()["model"]
    model = LlamaForCausalLM.from_pretrained(base)
    rows = model.config.vocab_size + 24
    model.resize_token_embeddings(rows)
    model.save_pretrained(tmp_path / "spare")
    config = converse(
        model={"name_or_path": str(tmp_path / "spare")},
        tokenizer={"name_or_path": base},
        freeze_config={"unfreeze_modules": ["embed_tokens"]},
    )
    run = launch(config)
    assert run.tensors["base_model.model.model.embed_tokens.weight"].shape[0] == rows
    batch = inputs(run, "hello w1 w2")
    merged = AutoModelForCausalLM.from_pretrained(export_run(run.open(), "merged", tmp_path / "merged"))
    assert merged.get_input_embeddings().weight.shape[0] == rows
    torch.testing.assert_close(logits(merged, batch), logits(run.model(), batch), rtol=0, atol=1e-5)
