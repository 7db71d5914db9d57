"""Tiny models of real architectures, from transformers' configs without downloads, and batches that train them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as tf
from torch import Tensor, nn

SMALL: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 16}
VOCABULARY, SEQUENCE, PIXELS, LABELS = 32, 8, 8, 3
VISION: dict[str, Any] = {"image_size": PIXELS, "patch_size": 4, **SMALL}
IMAGE_TOKEN = 31


@dataclass(frozen=True)
class Architecture:
    """How to build a tiny model, and one batch for it (the loss is the model's own)."""

    build: Callable[[], nn.Module]
    batch: Callable[[], dict[str, Tensor]]

    def loss(self, model: nn.Module) -> Tensor:
        """A scalar that reaches every part of the model."""
        return model(**self.batch()).loss


def _ids() -> Tensor:
    return torch.randint(3, VOCABULARY - 1, (2, SEQUENCE))


def _text() -> dict[str, Tensor]:
    ids = _ids()
    return {"input_ids": ids, "labels": ids}


def _labelled_text() -> dict[str, Tensor]:
    return {"input_ids": _ids(), "labels": torch.tensor([0, 2])}


def _labelled_images() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, PIXELS, PIXELS), "labels": torch.tensor([0, 2])}


def _larger_images() -> dict[str, Tensor]:
    # Large enough that each BatchNorm sees many values: with two, what comes out is -1 and 1 whatever goes in.
    return {"pixel_values": torch.randn(3, 3, 64, 64), "labels": torch.tensor([0, 2, 1])}


def _pairs() -> dict[str, Any]:
    return {"input_ids": _ids(), "pixel_values": torch.randn(2, 3, PIXELS, PIXELS), "return_loss": True}


def _image_text() -> dict[str, Tensor]:
    ids = _ids()
    ids[:, :4] = IMAGE_TOKEN  # an image of 8 x 8 is four patches
    return {"input_ids": ids, "pixel_values": torch.randn(2, 3, PIXELS, PIXELS), "labels": ids}


def _speech() -> dict[str, Tensor]:
    return {"input_features": torch.randn(2, 8, 40), "labels": _ids()}


def llama(**more: Any) -> nn.Module:
    return tf.LlamaForCausalLM(tf.LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=1, **SMALL, **more))


def qwen_moe() -> nn.Module:
    config = tf.Qwen3MoeConfig(
        vocab_size=VOCABULARY, num_key_value_heads=1, head_dim=4, num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=8, decoder_sparse_step=2, **SMALL,
    )  # fmt: skip
    return tf.Qwen3MoeForCausalLM(config)


def bert() -> nn.Module:
    return tf.BertForSequenceClassification(tf.BertConfig(vocab_size=VOCABULARY, num_labels=LABELS, **SMALL))


def distilbert() -> nn.Module:
    return tf.DistilBertForSequenceClassification(
        tf.DistilBertConfig(vocab_size=VOCABULARY, dim=8, n_layers=4, n_heads=2, hidden_dim=16, num_labels=LABELS)
    )


def t5() -> nn.Module:
    return tf.T5ForConditionalGeneration(
        tf.T5Config(
            vocab_size=VOCABULARY, d_model=8, d_kv=4, d_ff=16, num_layers=4, num_heads=2, decoder_start_token_id=0
        )
    )


def vit() -> nn.Module:
    return tf.ViTForImageClassification(tf.ViTConfig(num_labels=LABELS, **VISION))


def clip() -> nn.Module:
    text = tf.CLIPTextConfig(vocab_size=VOCABULARY, max_position_embeddings=SEQUENCE, **SMALL)
    vision = tf.CLIPVisionConfig(**VISION)
    return tf.CLIPModel(tf.CLIPConfig(text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=8))


def llava() -> nn.Module:
    text = tf.LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=1, **SMALL)
    vision = tf.CLIPVisionConfig(**VISION)
    return tf.LlavaForConditionalGeneration(
        tf.LlavaConfig(text_config=text, vision_config=vision, image_token_index=IMAGE_TOKEN)
    )


def whisper() -> nn.Module:
    config = tf.WhisperConfig(
        vocab_size=VOCABULARY, num_mel_bins=8, d_model=8, encoder_layers=4, decoder_layers=4,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
        max_source_positions=20, max_target_positions=SEQUENCE, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1,
    )  # fmt: skip
    return tf.WhisperForConditionalGeneration(config)


def resnet() -> nn.Module:
    config = tf.ResNetConfig(
        embedding_size=4, hidden_sizes=[4, 8, 8, 8], depths=[1, 1, 1, 1], layer_type="basic", num_labels=LABELS
    )
    return tf.ResNetForImageClassification(config)


def mamba() -> nn.Module:
    config = tf.MambaConfig(vocab_size=VOCABULARY, hidden_size=8, state_size=4, num_hidden_layers=4, time_step_rank=2)
    return tf.MambaForCausalLM(config)


def gpt2() -> nn.Module:
    config = tf.GPT2Config(vocab_size=VOCABULARY, n_positions=SEQUENCE, n_embd=8, n_layer=4, n_head=2)
    return tf.GPT2LMHeadModel(config)


def gemma() -> nn.Module:
    """Its head is its embedding."""
    return tf.GemmaForCausalLM(tf.GemmaConfig(vocab_size=VOCABULARY, num_key_value_heads=1, head_dim=4, **SMALL))


def gemma3n() -> nn.Module:
    """The last two layers have key and value projections that nothing calls: they reuse those of earlier layers."""
    config = tf.Gemma3nTextConfig(
        vocab_size=VOCABULARY, vocab_size_per_layer_input=VOCABULARY, hidden_size=8, num_hidden_layers=4,
        num_attention_heads=2, num_key_value_heads=1, head_dim=4, intermediate_size=16, hidden_size_per_layer_input=4,
        num_kv_shared_layers=2, laurel_rank=2, altup_num_inputs=2,
        layer_types=["sliding_attention", "full_attention"] * 2, activation_sparsity_pattern=[0.0] * 4,
    )  # fmt: skip
    return tf.Gemma3nForCausalLM(config)


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(llama, _text),
    "qwen_moe": Architecture(qwen_moe, _text),
    "bert": Architecture(bert, _labelled_text),
    "distilbert": Architecture(distilbert, _labelled_text),
    "t5": Architecture(t5, _text),
    "vit": Architecture(vit, _labelled_images),
    "clip": Architecture(clip, _pairs),
    "llava": Architecture(llava, _image_text),
    "whisper": Architecture(whisper, _speech),
    "resnet": Architecture(resnet, _larger_images),
    "mamba": Architecture(mamba, _text),
    "gpt2": Architecture(gpt2, _text),
    "gemma": Architecture(gemma, _text),
    "gemma3n": Architecture(gemma3n, _text),
}
