"""Tiny model folders with a word tokenizer, made in code: no file of the repository and no network."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = [
    "system",
    "user",
    "assistant",
    "hi",
    "hello",
    "there",
    "how",
    "are",
    "you",
    "fine",
    "thanks",
    "bye",
    "good",
    "bad",
    "film",
    "great",
    "awful",
    "ok",
    "a",
    "b",
    "c",
    "d",
]
SPECIAL = ["<pad>", "<unk>", "<s>", "</s>", "[CLS]", "[SEP]"]
CHATML = (
    "{% for m in messages %}{{ '<s>' + m['role'] + '\n' + m['content'] + '</s>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
)


def make_tokenizer(chat: bool) -> PreTrainedTokenizerFast:
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, "\n", *WORDS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.Split("\n", "isolated")]
    )
    if not chat:
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        cls_token="[CLS]",
        sep_token="[SEP]",
        chat_template=CHATML if chat else None,
        model_input_names=["input_ids", "attention_mask"]
        if chat
        else ["input_ids", "token_type_ids", "attention_mask"],
    )


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT body without a head: 2 layers x 16, window 32."""
    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=len(SPECIAL) + 1 + len(WORDS),
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=32,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        BertModel(config).save_pretrained(folder)
    make_tokenizer(chat=False).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with tied embeddings and a chat template: 2 layers x 16, window 64."""
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=len(SPECIAL) + 1 + len(WORDS),
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=64,
            tie_word_embeddings=True,
            pad_token_id=0,
            bos_token_id=2,
            eos_token_id=3,
        )
        LlamaForCausalLM(config).save_pretrained(folder)
    make_tokenizer(chat=True).save_pretrained(folder)
    return folder
