"""Adapters, heads, ties and block lists on the module trees of real architectures.

What trains under which config is in `tests/matrix/test_architectures_plan.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from frostline import LoRA, prepare, resolve

from .architectures import bert, clip, distilbert, llama, t5


def on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return build()


ALL = {"freeze_modules": ["*"]}


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
