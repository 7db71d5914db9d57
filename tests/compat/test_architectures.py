"""Selectors on the module trees of real architectures: the trainable set equals what a loop by hand gives."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    CLIPConfig,
    CLIPModel,
    CLIPTextConfig,
    CLIPVisionConfig,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

from frostline import LoRA, prepare, resolve
from frostline.tree import canonical_named_parameters

SMALL: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 16}


def llama(**more: Any) -> nn.Module:
    return LlamaForCausalLM(LlamaConfig(vocab_size=32, num_key_value_heads=1, **SMALL, **more))


def bert() -> nn.Module:
    return BertForSequenceClassification(BertConfig(vocab_size=32, **SMALL))


def distilbert() -> nn.Module:
    return DistilBertForSequenceClassification(
        DistilBertConfig(vocab_size=32, dim=8, n_layers=4, n_heads=2, hidden_dim=16)
    )


def t5() -> nn.Module:
    return T5ForConditionalGeneration(T5Config(vocab_size=32, d_model=8, d_kv=4, d_ff=16, num_layers=4, num_heads=2))


def vit() -> nn.Module:
    return ViTForImageClassification(ViTConfig(image_size=4, patch_size=2, **SMALL))


def clip() -> nn.Module:
    text, vision = CLIPTextConfig(vocab_size=32, **SMALL), CLIPVisionConfig(image_size=4, patch_size=2, **SMALL)
    return CLIPModel(CLIPConfig(text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=8))


def on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return build()


def number(path: str, container: str) -> int:
    """Index of the block that holds `path`, -1 outside."""
    found = re.match(re.escape(container) + r"\.(\d+)\.", path)
    return int(found[1]) if found else -1


ALL = {"freeze_modules": ["*"]}
Naive = Callable[[str], bool]
CASES: list[tuple[str, Callable[[], nn.Module], dict[str, Any], Naive]] = [
    ("llama last two blocks and norm", llama,
     {**ALL, "unfreeze_modules": [{"layers": "-2:"}, "model.norm"]},
     lambda p: number(p, "model.layers") >= 2 or p.startswith("model.norm.")),
    ("llama embeddings and head", llama, {"freeze_modules": ["embed_tokens", "lm_head"]},
     lambda p: not p.startswith(("model.embed_tokens.", "lm_head."))),
    ("llama attention of layer 1", llama, {**ALL, "unfreeze_modules": ["layers.1.self_attn"]},
     lambda p: p.startswith("model.layers.1.self_attn.")),
    ("llama linears of the first half without o_proj", llama,
     {**ALL, "unfreeze_modules": [{"type": "Linear", "within": {"layers": ":2"}, "except": ["o_proj"]}]},
     lambda p: 0 <= number(p, "model.layers") < 2 and "_proj." in p and ".o_proj." not in p),
    ("bert bare name is not a substring", bert, {"freeze_modules": ["bert"]}, lambda p: p.startswith("classifier.")),
    ("bert biases and classifier", bert, {**ALL, "unfreeze_modules": [{"param": "*.bias"}, "classifier"]},
     lambda p: p.endswith(".bias") or p.startswith("classifier.")),
    ("bert layer norms", bert, {**ALL, "unfreeze_modules": [{"type": "LayerNorm"}]},
     lambda p: "LayerNorm" in p),
    ("bert every other layer by regex", bert,
     {"freeze_modules": [{"regex": r"bert\.encoder\.layer\.[02]"}]},
     lambda p: number(p, "bert.encoder.layer") not in (0, 2)),
    ("distilbert embeddings and lower layers", distilbert, {"freeze_modules": ["embeddings", {"layers": ":3"}]},
     lambda p: not p.startswith("distilbert.embeddings.") and number(p, "distilbert.transformer.layer") in (-1, 3)),
    ("t5 last decoder block", t5, {**ALL, "unfreeze_modules": [{"layers": -1, "of": "decoder.block"}]},
     lambda p: number(p, "decoder.block") == 3),
    ("t5 without encoder blocks", t5, {"freeze_modules": [{"path": "encoder.block"}]},
     lambda p: not p.startswith("encoder.block.")),
    ("vit classifier and last layer", vit, {**ALL, "unfreeze_modules": ["classifier", {"layers": [3]}]},
     lambda p: p.startswith("classifier.") or re.search(r"\blayers?\.3\.", p) is not None),
    ("clip text tower", clip, {"freeze_modules": ["vision_model", "visual_projection"]},
     lambda p: not p.startswith(("vision_model.", "visual_projection."))),
    ("clip last vision block only", clip,
     {**ALL, "unfreeze_modules": [{"layers": -1, "within": "vision_model"}]},
     lambda p: number(p, "vision_model.encoder.layers") == 3),
]  # fmt: skip


@pytest.mark.parametrize(("build", "config", "naive"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_trainable_set_equals_a_loop_by_hand(
    build: Callable[[], nn.Module], config: dict[str, Any], naive: Naive
) -> None:
    model = on_meta(build)
    names = [path for path, _ in canonical_named_parameters(model, unique=True)]
    expected = {name for name in names if naive(name)}
    assert expected, "the definition by hand must select something"
    assert len(expected) < len(names)
    plan = resolve(model, freeze_config=config)
    assert set(plan.trainable) == expected
    assert plan.num_trainable == sum(dict(model.named_parameters())[name].numel() for name in expected)
    plan.apply(model)
    assert {name for name, param in model.named_parameters() if param.requires_grad} == expected
    assert plan.render().count("\n") < 60


@pytest.mark.parametrize(
    ("build", "targets", "leaf"),
    [
        (llama, ["*_proj"], r"_proj$"),
        (bert, ["query", "value"], r"\.(query|value)$"),
        (distilbert, ["q_lin"], r"q_lin$"),
        (t5, [{"glob": "decoder.*.wi"}], r"^decoder\..*\.wi$"),
        (clip, [{"type": "Linear", "within": "text_model"}], r"^text_model\."),
    ],
)
def test_adapters_go_where_a_loop_by_hand_puts_them_and_meta_equals_real(
    build: Callable[[], nn.Module], targets: list[Any], leaf: str
) -> None:
    method = LoRA(rank=2, target_modules=targets)
    planned = resolve(on_meta(build), peft=method)
    model = build()
    expected = {
        name for name, module in model.named_modules() if isinstance(module, nn.Linear) and re.search(leaf, name)
    }
    assert expected
    model, plan = prepare(model, peft=method)
    assert plan == planned == resolve(model, peft=method)
    trained = {name for name, param in model.named_parameters() if param.requires_grad}
    assert {name.partition(".lora_")[0] for name in trained} == expected
    assert len(trained) == 2 * len(expected)


def test_case_90_all_linear_leaves_the_output_head_out_and_naming_it_takes_it_in() -> None:
    plan = resolve(on_meta(llama), peft=LoRA())
    assert not any(path.startswith("lm_head") for path in plan.trainable)
    named = resolve(on_meta(llama), peft=LoRA(target_modules=["*_proj", "lm_head"]))
    assert "lm_head.lora_A.default.weight" in named.trainable


def test_case_47_a_tied_head_conflicts_and_one_that_is_not_tied_does_not() -> None:
    config = {**ALL, "unfreeze_modules": ["lm_head"]}
    with pytest.raises(LookupError, match=r"under its names model\.embed_tokens\.weight, lm_head\.weight"):
        resolve(llama(tie_word_embeddings=True), freeze_config=config)
    assert resolve(llama(tie_word_embeddings=False), freeze_config=config).trainable == ("lm_head.weight",)


def test_a_model_with_two_stacks_asks_which_one() -> None:
    with pytest.raises(LookupError, match=r"2 block lists[\s\S]*encoder\.block \(4 blocks\), decoder\.block"):
        resolve(on_meta(t5), freeze_config={"freeze_modules": [{"layers": 0}]})
