"""Trained rows against the real Hugging Face peft: `trainable_token_indices`, both ways."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import frostline as fl
from frostline.adapters import rows_of
from frostline.errors import AdapterError

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

# peft 0.21 asks transformers 5.24 for a property by its old name. Goes when peft uses `is_activation_checkpointing`.
OLD_NAME = "`is_gradient_checkpointing` is deprecated"
pytestmark = pytest.mark.filterwarnings(f"ignore:{OLD_NAME}:FutureWarning")

TOKENS = torch.arange(24).reshape(3, 8) % 40
TINY = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
}


def llama(tied: bool) -> Callable[[], Any]:
    def build() -> Any:
        torch.manual_seed(0)
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY, tie_word_embeddings=tied)).eval()

    return build


def gemma() -> Any:
    torch.manual_seed(0)
    return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**TINY, head_dim=8)).eval()


def bert() -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(**{key: value for key, value in TINY.items() if key != "num_key_value_heads"})
    return transformers.BertForSequenceClassification(config).eval()


def masked_bert() -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(**{key: value for key, value in TINY.items() if key != "num_key_value_heads"})
    return transformers.BertForMaskedLM(config).eval()


def t5() -> Any:
    torch.manual_seed(0)
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=40, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    ).eval()


def logits(model: nn.Module) -> Tensor:
    inputs = {"input_ids": TOKENS}
    config: Any = model.config
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = TOKENS
    with torch.no_grad():
        return model.eval()(**inputs).logits


def scatter(model: nn.Module) -> None:
    """What trains, and every factor, away from where it started."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, param in model.named_parameters():
            if param.requires_grad or ".lora_" in name:
                param += 0.2 * torch.randn(param.shape, generator=generator)


def in_peft(build: Callable[[], Any], folder: Path) -> Any:
    """The adapter as peft loads it; any warning (missing or unexpected keys) is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", OLD_NAME, FutureWarning)
        return peft.PeftModel.from_pretrained(build(), folder)


EMBED = {"param": "*.embed_tokens.weight", "rows": "5:9"}
# model, rows, what the config then says of them
OURS: dict[str, tuple[Callable[[], Any], list[dict[str, Any]], Any]] = {
    "tied": (llama(tied=True), [EMBED], [5, 6, 7, 8]),
    "untied": (llama(tied=False), [EMBED], [5, 6, 7, 8]),
    "untied, both": (
        llama(tied=False),
        [EMBED, {"param": "lm_head.weight", "rows": [39, 0]}],
        {"model.embed_tokens": [5, 6, 7, 8], "lm_head": [0, 39]},
    ),
    "untied, the head alone": (llama(tied=False), [{"param": "lm_head.weight", "rows": [39, 0]}], {"lm_head": [0, 39]}),
    "scaled": (gemma, [EMBED], [5, 6, 7, 8]),
    "an encoder": (bert, [{"param": "*.word_embeddings.weight", "rows": "5:9"}], [5, 6, 7, 8]),
    "a table beside the input's": (
        bert,
        [{"param": "*.position_embeddings.weight", "rows": "5:9"}],
        {"bert.embeddings.position_embeddings": [5, 6, 7, 8]},
    ),
}


@pytest.mark.parametrize("name", OURS)
def test_peft_computes_what_we_compute(name: str, tmp_path: Path) -> None:
    build, unfreeze, said = OURS[name]
    new = ["classifier.weight", "classifier.bias"] if build is bert else []
    targets = ["query"] if build is bert else ["q_proj", "v_proj"]
    model, plan = fl.prepare(
        build(), freeze_config={"unfreeze_modules": unfreeze}, peft=fl.LoRA(rank=2, target_modules=targets), new=new
    )
    scatter(model)
    fl.save_adapter(model, tmp_path / "a", task_type="SEQ_CLS" if build is bert else "CAUSAL_LM")
    assert json.loads((tmp_path / "a/adapter_config.json").read_text())["trainable_token_indices"] == said
    ours = logits(model)
    assert (ours - logits(build())).abs().max() > 0.01
    theirs = in_peft(build, tmp_path / "a")
    assert (logits(theirs) - ours).abs().max() <= 1e-6 * ours.abs().max().clamp(min=1)
    assert (logits(theirs.merge_and_unload()) - ours).abs().max() <= 1e-5
    again, loaded = fl.load_adapter(build(), tmp_path / "a")
    assert torch.equal(logits(again), ours)
    assert loaded.digest == plan.digest
    assert (logits(fl.merge(again)) - ours).abs().max() <= 1e-5


THEIRS: dict[str, tuple[Callable[[], Any], Any]] = {
    "tied, a list": (llama(tied=True), [8, 5, 30]),
    "tied, a mapping": (llama(tied=True), {"embed_tokens": [8, 5, 30]}),
    "tied, both names": (llama(tied=True), {"embed_tokens": [8, 5], "lm_head": [8, 5]}),
    "untied, a list": (llama(tied=False), [8, 5, 30]),
    "untied, a mapping": (llama(tied=False), {"embed_tokens": [8, 5], "lm_head": [1]}),
    "scaled": (gemma, [8, 5, 30]),
}


@pytest.mark.parametrize("name", THEIRS)
def test_we_compute_what_peft_computes(name: str, tmp_path: Path) -> None:
    build, indices = THEIRS[name]
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM", trainable_token_indices=indices)
    theirs = peft.get_peft_model(build(), config)
    scatter(theirs)
    theirs.save_pretrained(tmp_path / "a")
    model, plan = fl.load_adapter(build(), tmp_path / "a")
    expected = logits(theirs)
    assert (expected - logits(build())).abs().max() > 0.01
    assert (logits(model) - expected).abs().max() <= 1e-6 * expected.abs().max().clamp(min=1)
    assert plan.decisions["model.embed_tokens.trained_rows"].rows in ((5, 8), (5, 8, 30))
    fl.save_adapter(model, tmp_path / "b", task_type="CAUSAL_LM")
    assert (logits(in_peft(build, tmp_path / "b")) - expected).abs().max() <= 1e-6 * expected.abs().max().clamp(min=1)


def test_the_same_gradients(tmp_path: Path) -> None:
    build = llama(tied=True)
    ours, _ = fl.prepare(
        build(), freeze_config={"unfreeze_modules": [EMBED]}, peft=fl.LoRA(rank=2, target_modules=["q_proj"])
    )
    theirs = peft.get_peft_model(
        build(), peft.LoraConfig(r=2, target_modules=["q_proj"], trainable_token_indices=[5, 6, 7, 8])
    )
    for model in (ours, theirs):
        model(input_ids=TOKENS).logits.logsumexp(-1).square().sum().backward()
    grads = [ours.get_parameter("model.embed_tokens.trained_rows").grad]
    grads += [param.grad for name, param in theirs.named_parameters() if "trainable_tokens_delta" in name]
    assert len(grads) == 2
    assert torch.allclose(*grads, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("indices", [{"embed_tokens": [8, 5], "lm_head": [1]}, {"lm_head": [1]}], ids=str)
def test_a_tied_pair_that_peft_trained_apart_is_refused(indices: dict[str, list[int]], tmp_path: Path) -> None:
    """Other rows for the head of a tied model: peft breaks the tie there, and no tied model computes that."""
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], trainable_token_indices=indices)
    theirs = peft.get_peft_model(llama(tied=True)(), config)
    theirs.save_pretrained(tmp_path / "a")
    with pytest.raises(AdapterError, match="rows of lm_head trained apart, which in this model is tied"):
        fl.load_adapter(llama(tied=True)(), tmp_path / "a")


INEXPRESSIBLE: dict[str, tuple[Callable[[], Any], list[str], str]] = {
    "a decoder with bias": (
        masked_bert,
        ["bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"],
        "peft leaves out the bias of the linear cls.predictions.decoder",
    ),
}


@pytest.mark.parametrize("name", INEXPRESSIBLE)
def test_what_peft_would_compute_otherwise_is_refused(name: str, tmp_path: Path) -> None:
    build, names, reason = INEXPRESSIBLE[name]
    model, _ = fl.prepare(
        build(),
        freeze_config={"unfreeze_modules": [{"param": path, "rows": "5:9"} for path in names]},
        peft=fl.LoRA(rank=2, target_modules=["query"]),
    )
    with pytest.raises(AdapterError, match=reason):
        fl.save_adapter(model, tmp_path / "a")


def test_three_modules_that_share_a_table(tmp_path: Path) -> None:
    names = [path for path, param in t5().named_parameters(remove_duplicate=False) if param.shape == (40, 16)]
    assert len(names) >= 3
    model, _ = fl.prepare(
        t5(),
        freeze_config={"unfreeze_modules": [{"param": path, "rows": "5:9"} for path in names]},
        peft=fl.LoRA(rank=2, target_modules=["q"]),
    )
    scatter(model)
    assert len(next(iter(rows_of(model).values())).modules) == len(names)
    fl.save_adapter(model, tmp_path / "a")
    stored = load_file(tmp_path / "a/adapter_model.safetensors")
    assert sum("token_adapter" in key for key in stored) == 1
    assert (logits(in_peft(t5, tmp_path / "a")) - logits(model)).abs().max() <= 1e-5
