"""Blocks written for nemo-automodel 0.7 mean the same here; each difference is listed with its reason.

Both read the same block and decide for the same tiny model. What differs is in `DIFFERENCES`, exactly.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    CLIPConfig,
    CLIPModel,
    CLIPTextConfig,
    CLIPVisionConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    MixtralConfig,
    MixtralForCausalLM,
)

from frostline import LoRA, resolve
from frostline.errors import ConfigError, FrostlineDeprecationWarning, SelectorError
from frostline.tree import canonical_named_parameters

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("nemo_automodel") is None,
    reason="NOT RUN: nemo-automodel is not installed (pip install --no-deps -r requirements/test-assets.txt)",
)

SMALL: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 16}
Block = dict[str, Any]


def llama(**more: Any) -> nn.Module:
    return LlamaForCausalLM(LlamaConfig(vocab_size=32, num_key_value_heads=1, **SMALL, **more))


def tied_llama() -> nn.Module:
    return llama(tie_word_embeddings=True)


def bert() -> nn.Module:
    return BertForSequenceClassification(BertConfig(vocab_size=32, **SMALL))


def vision_config() -> CLIPVisionConfig:
    return CLIPVisionConfig(image_size=4, patch_size=2, projection_dim=8, **SMALL)


def llava() -> nn.Module:
    text = LlamaConfig(vocab_size=32, num_key_value_heads=1, **SMALL)
    return LlavaForConditionalGeneration(
        LlavaConfig(vision_config=vision_config(), text_config=text, image_token_index=31)
    )


def clip() -> nn.Module:
    text = CLIPTextConfig(vocab_size=32, projection_dim=8, **SMALL)
    return CLIPModel(CLIPConfig(text_config=text.to_dict(), vision_config=vision_config().to_dict(), projection_dim=8))


def mixtral() -> nn.Module:
    return MixtralForCausalLM(
        MixtralConfig(vocab_size=32, num_key_value_heads=1, num_local_experts=4, num_experts_per_tok=2, **SMALL)
    )


class Projected(nn.Module):
    """A multimodal model with parts whose names hold `text` and `vision` inside other words."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("vision_tower", "language_model", "audio_tower", "context_proj", "revision_head", "embed_vision"):
            self.add_module(name, nn.Linear(2, 2))
        self.patch_generator = nn.ModuleDict({"video_embedder": nn.Linear(2, 2), "embedder": nn.Linear(2, 2)})


MODELS: dict[str, Callable[[], nn.Module]] = {
    "llama": llama,
    "tied llama": tied_llama,
    "bert": bert,
    "llava": llava,
    "clip": clip,
    "mixtral": mixtral,
    "projected": Projected,
}

# Blocks for every model, then those that name parts of one.
ANY: dict[str, Block] = {
    "empty": {},
    "vision": {"freeze_vision_tower": True},
    "no vision": {"freeze_vision_tower": False},
    "audio": {"freeze_audio_tower": True},
    "video": {"freeze_video_embedder": True, "freeze_vision_tower": False},
    "language": {"freeze_language_model": True, "freeze_vision_tower": False},
    "all modalities": {
        "freeze_vision_tower": True,
        "freeze_audio_tower": True,
        "freeze_language_model": True,
        "freeze_video_embedder": True,
    },
    "empty lists": {"freeze_modules": [], "unfreeze_modules": []},
}
OWN: dict[str, dict[str, Block]] = {
    "llama": {
        "path": {"freeze_modules": [{"path": "model.embed_tokens"}]},
        "glob": {
            "freeze_modules": [{"glob": "model.layers.[01]"}],
            "unfreeze_modules": [{"path": "model.layers.0.mlp"}],
        },
        "head only": {"freeze_modules": [{"glob": "*"}], "unfreeze_modules": [{"path": "lm_head"}]},
        "index": {"freeze_modules": [{"glob": "*.layers.1*"}]},
        "crossing dots": {"freeze_modules": [{"glob": "model*proj"}]},
        "only unfreeze": {"unfreeze_modules": [{"glob": "*.self_attn"}]},
        "selectors and legacy": {"freeze_modules": [{"path": "lm_head"}], "freeze_audio_tower": True},
    },
    "tied llama": {
        "embedding": {"freeze_modules": [{"path": "model.embed_tokens"}]},
        "head": {"freeze_modules": [{"path": "lm_head"}]},
        "both": {"freeze_modules": [{"path": "model.embed_tokens"}], "unfreeze_modules": [{"path": "lm_head"}]},
    },
    "bert": {
        "backbone": {"freeze_modules": [{"path": "bert"}]},
        "last layer": {"freeze_modules": [{"path": "bert"}], "unfreeze_modules": [{"path": "bert.encoder.layer.2"}]},
        "norms": {"freeze_modules": [{"glob": "*.LayerNorm"}]},
        "everything but the head": {"freeze_modules": [{"glob": "*"}], "unfreeze_modules": [{"path": "classifier"}]},
    },
    "llava": {
        "tower": {"freeze_modules": [{"path": "model.vision_tower"}]},
        "towers": {"freeze_modules": [{"glob": "*.vision_tower"}, {"glob": "*.language_model"}]},
        "projector": {"freeze_modules": [{"glob": "*"}], "unfreeze_modules": [{"glob": "*.multi_modal_projector"}]},
        "vision and a list": {"freeze_modules": [{"path": "lm_head"}], "freeze_vision_tower": True},
    },
    "clip": {
        "everything but a projection": {
            "freeze_modules": [{"glob": "*"}],
            "unfreeze_modules": [{"path": "text_projection"}],
        },
        "tower": {"freeze_modules": [{"path": "vision_model"}]},
    },
    "mixtral": {
        "experts": {"freeze_modules": [{"glob": "*.experts"}]},
        "router": {"freeze_modules": [{"glob": "*.mlp.gate"}]},
        "experts of the last layer": {
            "freeze_modules": [{"glob": "*"}],
            "unfreeze_modules": [{"path": "model.layers.2.mlp.experts"}],
        },
    },
    "projected": {"tower": {"freeze_modules": [{"path": "vision_tower"}]}},
}
CASES = [(model, name, block) for model in MODELS for name, block in {**ANY, **OWN[model]}.items()]

_NO_TOWER = "nothing is called so in a plain language model: theirs freezes nothing and says nothing, ours is an error"
_WORDS = "words are compared, not letters: context_proj holds `text` and revision_head holds `vision`, both stay"
#: (model, block) -> what theirs freezes and ours does not, what ours freezes and theirs does not, why.
DIFFERENCES: dict[tuple[str, str], tuple[set[str], set[str], str]] = {
    ("projected", "empty"): ({"revision_head"}, set(), _WORDS),
    ("projected", "vision"): ({"revision_head"}, set(), _WORDS),
    ("projected", "audio"): ({"revision_head"}, set(), _WORDS),
    ("projected", "language"): ({"context_proj"}, set(), _WORDS),
    ("projected", "all modalities"): ({"revision_head", "context_proj"}, set(), _WORDS),
    ("clip", "everything but a projection"): (
        set(),
        {"logit_scale"},
        "`*` names every module, and so the root with its own parameters; theirs passes over the root",
    ),
}
#: (model, block) -> what ours raises, why.
REFUSALS: dict[tuple[str, str], tuple[str, str]] = {
    **{
        (model, block): ("freeze_language_model: true freezes nothing", _NO_TOWER)
        for model in ("llama", "tied llama", "bert", "mixtral")
        for block in ("language", "all modalities")
    },
    ("tied llama", "both"): (
        "one tensor is both frozen and trained under its names",
        "embedding and head are one tensor; theirs trains both although one is frozen",
    ),
}


def theirs(model: nn.Module, block: Block) -> set[str]:
    """Names that train after nemo-automodel's own functions, in the order of its own loading code."""
    from nemo_automodel.components.utils.model_utils import apply_parameter_freezing, freeze_unused_kv_sharing_params

    apply_parameter_freezing(model, block)
    freeze_unused_kv_sharing_params(model)
    return {name for name, param in model.named_parameters(remove_duplicate=False) if param.requires_grad}


def ours(model: nn.Module, block: Block, **more: Any) -> set[str]:
    """Names that our plan trains; that legacy keys are deprecated is tested elsewhere."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FrostlineDeprecationWarning)
        plan = resolve(model, freeze_config=block, **more)
    return {path for path, _ in canonical_named_parameters(model) if plan.decisions[path].trains}


def below(names: set[str], parts: set[str]) -> set[str]:
    return {name for name in names if any(name == part or name.startswith(f"{part}.") for part in parts)}


@pytest.mark.parametrize(("model", "name", "block"), CASES, ids=[f"{model}-{name}" for model, name, _ in CASES])
def test_one_block_has_one_meaning_but_for_the_listed_differences(model: str, name: str, block: Block) -> None:
    key = (model, name)
    if key in REFUSALS:
        message, _ = REFUSALS[key]
        theirs(MODELS[model](), block)  # accepts it
        with pytest.raises(SelectorError, match=message):
            ours(MODELS[model](), block)
        return
    their_set, our_set = theirs(MODELS[model](), block), ours(MODELS[model](), block)
    frozen_by_theirs, frozen_by_ours, _ = DIFFERENCES.get(key, (set[str](), set[str](), ""))
    everything = {path for path, _ in canonical_named_parameters(MODELS[model]())}
    assert our_set - their_set == below(everything, frozen_by_theirs)
    assert their_set - our_set == below(everything, frozen_by_ours)
    assert our_set


def test_every_listed_difference_is_one_of_the_cases_and_says_why() -> None:
    assert len(CASES) > 70
    known = {(model, name) for model, name, _ in CASES}
    assert {*DIFFERENCES, *REFUSALS} <= known
    assert all(why and (theirs_more or ours_more) for theirs_more, ours_more, why in DIFFERENCES.values())
    assert all(why for _, why in REFUSALS.values())


def test_a_block_that_freezes_everything_is_refused_here_and_only_warned_of_there() -> None:
    everything = {"freeze_modules": [{"glob": "*"}]}
    assert theirs(llama(), everything) == set()
    with pytest.raises(ConfigError, match="nothing trains"):
        ours(llama(), everything)


def test_both_refuse_a_selector_that_matches_nothing_and_what_is_no_selector() -> None:
    for block in (
        {"freeze_modules": [{"path": "embed_tokens"}]},
        {"unfreeze_modules": [{"glob": "layers.*"}]},
        {"freeze_modules": [{"path": "lm_head", "glob": "lm_head"}]},
        {"freeze_modules": [{}]},
        {"freeze_modules": [{"path": ""}]},
        {"freeze_modules": None},
        {"freeze_vision_tower": "true"},
        {"freeze_modulse": []},
    ):
        with pytest.raises((ValueError, TypeError)):
            theirs(llama(), block)
        with pytest.raises(ConfigError):
            ours(llama(), block)


def test_a_legacy_key_without_a_value_is_refused_here_and_omitted_there() -> None:
    block = {"freeze_audio_tower": None, "freeze_vision_tower": False}
    assert theirs(llama(), block) == {path for path, _ in canonical_named_parameters(llama())}
    with pytest.raises(ConfigError, match="freeze_audio_tower is null"):
        ours(llama(), block)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    ("block", "new_trains"),
    [
        ({"freeze_modules": [{"path": "bert.embeddings"}]}, True),
        ({"unfreeze_modules": [{"path": "bert.pooler"}]}, True),
        ({"unfreeze_modules": [{"path": "classifier"}]}, False),
        ({}, True),
    ],
)
def test_with_adapters_only_new_parameters_differ(block: Block, new_trains: bool) -> None:
    """New parameters train here also when a `freeze_config` is given; theirs leaves a fresh head random for ever."""
    from nemo_automodel.components._peft.lora import PeftConfig, apply_lora_to_linear_modules

    model = bert()
    apply_lora_to_linear_modules(model, PeftConfig(target_modules=["*.query", "*.value"], dim=2))
    for name, param in model.named_parameters(remove_duplicate=False):  # as its loading code does
        param.requires_grad_("lora_" in name)
    their_set = {
        name.replace(".lora_A.weight", ".lora_A").replace(".lora_B.weight", ".lora_B") for name in theirs(model, block)
    }
    head = {"classifier.weight", "classifier.bias"}
    method = LoRA(rank=2, target_modules=["query", "value"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FrostlineDeprecationWarning)
        plan = resolve(bert(), freeze_config=block, peft=method, new=head)
    our_set = {path.replace(".default.weight", "") for path in plan.trainable}
    assert our_set - their_set == (head if new_trains else set())
    assert their_set <= our_set
