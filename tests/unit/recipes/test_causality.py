"""causal_lm refuses models that see what they should predict."""

from __future__ import annotations

import pytest
import torch
from transformers import BertConfig, BertLMHeadModel, LlamaConfig, LlamaForCausalLM

from frostline.config.origin import Origin
from frostline.errors import ModelError
from frostline.recipes.causal_lm import CausalLM

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
}


def test_an_encoder_is_refused() -> None:
    torch.manual_seed(0)
    model = BertLMHeadModel(BertConfig(**SIZES)).eval()
    with pytest.raises(ModelError, match=r"BertLMHeadModel sees the tokens(.|\n)*line 2: model(.|\n)*decoders"):
        CausalLM().check_model(model, Origin("model", "run.yaml", 2))


def test_decoders_are_accepted() -> None:
    torch.manual_seed(0)
    CausalLM().check_model(LlamaForCausalLM(LlamaConfig(**SIZES)).eval(), Origin("model"))
    CausalLM().check_model(BertLMHeadModel(BertConfig(**SIZES, is_decoder=True)).eval(), Origin("model"))
