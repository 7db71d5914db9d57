"""Keys of other tools: each answer names a key that exists, and what it says to write is accepted."""

from __future__ import annotations

from typing import Any

import pytest

from frostline.config import Config, load_config
from frostline.config.foreign_keys import FOREIGN_KEYS
from frostline.config.section import subsection
from frostline.errors import ConfigError

RECIPES: dict[str, str] = {
    "data.train_on": "causal_lm",
    "data.system": "causal_lm",
    "tokenizer.chat_template": "causal_lm",
}
SAMPLES: dict[str, Any] = {
    "modules_to_save": ["classifier"],
    "trainable_modules": ["classifier"],
    "lora_modules_to_save": ["classifier"],
    "lora_target": "all",
    "lora_target_modules": ["q_proj"],
    "lora_target_linear": True,
    "lora_r": 16,
    "lora_rank": 16,
    "lora_alpha": 32,
    "lora_dropout": 0.1,
    "val_set_size": 0.05,
    "val_size": 0.05,
    "validation_split": 0.05,
    "sequence_len": 512,
    "train_on_inputs": False,
    "num_frozen_layers": 4,
    "freeze_layers": 4,
    "freeze_trainable_layers": 2,
    "learning_rate": 1e-4,
    "num_train_epochs": 3,
    "per_device_train_batch_size": 8,
    "warmup_ratio": 0.1,
    "lr_scheduler": "cosine",
    "bf16": True,
    "torch_dtype": "bfloat16",
    "base_model": "bert",
    "optim": "adamw_torch",
    "save_steps": 100,
    "early_stopping_patience": 3,
    "wandb_project": "p",
    "match_all_linear": True,
    "finetuning_type": "lora",
    "task_type": "SEQ_CLS",
    "bias": "all",
    "default_system": "You are kind.",
} | {
    key: True
    for key in FOREIGN_KEYS
    if key.startswith("freeze_") and not key.startswith("freeze_trainable") and key != "freeze_layers"
}


def set_value(config: dict[str, Any], dotted: str, value: Any) -> dict[str, Any]:
    inner = config
    *parents, last = dotted.split(".")
    for key in parents:
        inner = inner.setdefault(key, {})
    inner[last] = value
    return config


@pytest.mark.parametrize("key", FOREIGN_KEYS)
def test_our_key_exists_and_theirs_does_not(key: str) -> None:
    ours = FOREIGN_KEYS[key].ours
    if ours is None:
        assert FOREIGN_KEYS[key].note
    section: Any = Config
    for part in ours.split(".") if ours else ():
        assert section is not None, f"{ours} leads into a plain value"
        assert part in section.model_fields, f"{ours} does not exist"
        assert key not in section.model_fields, f"{key} is a key of ours, so the table would hide its true place"
        below = subsection(section.model_fields[part])
        section = None if below is None else below[0]


@pytest.mark.parametrize("key", SAMPLES)
def test_what_it_says_to_write_is_accepted(key: str) -> None:
    foreign = FOREIGN_KEYS[key]
    assert foreign.convert is not None
    assert foreign.ours is not None
    converted = foreign.convert(SAMPLES[key])
    assert converted is not None
    recipe = RECIPES.get(foreign.ours, "sequence_classification")
    config: dict[str, Any] = {"recipe": recipe, "model": {"name_or_path": "m"}, "data": {"train": "t"}}
    load_config(set_value(config, foreign.ours, converted))


@pytest.mark.parametrize("section", [None, "training", "peft", "data", "freeze_config", "model", "optimizer"])
@pytest.mark.parametrize("key", ["sequence_len", "cutoff_len", "val_set_size", "modules_to_save", "lora_r"])
def test_refused_at_any_level(section: str | None, key: str) -> None:
    config: dict[str, Any] = {"recipe": "sft", "model": {"name_or_path": "m"}, "data": {"train": "t"}}
    set_value(config, key if section is None else f"{section}.{key}", 64)
    with pytest.raises(ConfigError, match=rf"`{key}` is a key of .*, not of Frostline \(its value is 64\)") as caught:
        load_config(config)
    (problem,) = caught.value.problems
    assert f"Frostline's key is `{FOREIGN_KEYS[key].ours}`" in (problem.possible or "")


@pytest.mark.parametrize(
    ("key", "value", "fix"),
    [
        ("sequence_len", 512, "write data: {max_length: 512}"),
        ("lora_target_linear", True, "write peft: {target_modules: all-linear}"),
        ("lora_target_linear", False, "remove `lora_target_linear`: false is what happens without it"),
        ("val_set_size", 0.05, "write data: {validation: 0.05}"),
        ("freeze_vision_model", True, 'write freeze_config: {freeze_modules: ["vision*"]}, or add it to the list'),
        ("freeze_vision_tower", True, "move it: freeze_config: {freeze_vision_tower: true}"),  # a key of ours
        ("freeze_lm_head", False, "remove `freeze_lm_head`"),
        ("early_stopping_patience", 3, "write evaluation: {early_stopping: {patience: 3}}"),
        ("gradient_accumulation_steps", 4, "set `training.batch_size` instead"),
        ("resume_from_checkpoint", "x", "run `frostline train CONFIG --resume`"),
        ("optim", "adamw_8bit", "set `optimizer.name` instead"),
        ("per-device-train-batch-size", 8, "write training: {micro_batch_size: 8}"),
    ],
)
def test_the_value_is_carried_over(key: str, value: object, fix: str) -> None:
    config: dict[str, Any] = {"recipe": "sft", "model": "m", "data": {"train": "t"}, key: value}
    with pytest.raises(ConfigError) as caught:
        load_config(config)
    assert fix in (caught.value.problems[0].fix or "")


def test_lora_names_are_read_inside_peft() -> None:
    peft = {"lora_rank": 4, "lora_alpha": 8, "lora_dropout": 0.5}
    config = load_config({"recipe": "sft", "model": "m", "data": {"train": "t"}, "peft": peft}).config
    assert config.peft is not None
    assert (config.peft.rank, config.peft.alpha, config.peft.dropout) == (4, 8.0, 0.5)
