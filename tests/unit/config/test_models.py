"""The sections used from Python: strict, frozen, with the same aliases, shorthands and faults as in a file."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from frostline.config import (
    Config,
    DataConfig,
    EvaluationConfig,
    FreezeConfig,
    ModelConfig,
    OptimizerConfig,
    PeftConfig,
    ScheduleConfig,
    TrainingConfig,
)
from frostline.config.section import Section, subsection


def sections(section: type[Section] = Config) -> list[type[Section]]:
    found = [section]
    for field in section.model_fields.values():
        below = subsection(field)
        if below is not None:
            found += [other for other in sections(below[0]) if other not in found]
    return found


@pytest.mark.parametrize("section", sections())
def test_every_field_is_documented_and_every_alias_points_somewhere(section: type[Section]) -> None:
    assert all(field.description for field in section.model_fields.values())
    assert set(section.aliases.values()) <= set(section.model_fields)
    assert not set(section.aliases) & set(section.model_fields)
    assert section.shorthand is None or section.shorthand in section.model_fields
    assert section.main_key is None or section.main_key in section.model_fields


def test_defaults() -> None:
    config = Config.model_validate({"recipe": "sft", "model": "m", "data": {"train": "t"}})
    assert (config.recipe, config.model.name_or_path, config.data.train.source) == ("causal_lm", "m", "t")
    assert (config.training.epochs, config.training.max_steps) == (1.0, None)
    assert config.training.batch_size == 32
    assert config.data.validation == 0.1
    assert (config.optimizer.name, config.schedule.name, config.schedule.warmup) == ("adamw", "linear", 0)
    assert (config.evaluation.every, config.checkpoint.every, config.checkpoint.keep) == ("epoch", "epoch", 2)
    assert config.learning_rate == 2e-5
    assert config.model_copy(update={"optimizer": OptimizerConfig(lr=3.0)}).learning_rate == 3.0


def test_epochs_default_gives_way_to_max_steps() -> None:
    assert TrainingConfig(max_steps=5).epochs is None
    assert TrainingConfig().epochs == 1.0
    assert TrainingConfig(epochs=3).epochs == 3.0


def test_steps_and_fractions_keep_their_type() -> None:
    assert type(ScheduleConfig(warmup=1).warmup) is int
    assert type(ScheduleConfig(warmup=0.0).warmup) is float
    assert type(DataConfig.model_validate({"train": "t", "validation": 1}).validation) is int
    assert EvaluationConfig(every=5).every == 5


def test_sections_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        TrainingConfig().seed = 3  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        (TrainingConfig, {"epochs": 1, "max_steps": 1}, "both `training.epochs`"),
        (TrainingConfig, {"micro_batch_size": 5}, "does not divide"),
        (TrainingConfig, {"batch_size": "8"}, "batch_size"),
        (TrainingConfig, {"seed": True}, "seed"),
        (PeftConfig, {"target_modules": []}, "is an empty list"),
        (PeftConfig, {"r": 1, "rank": 1}, "r and rank mean the same"),
        (FreezeConfig, {"freeze_modules": None}, "a selector cannot be null"),
        (ModelConfig, {"name": "m"}, "name"),
        (OptimizerConfig, {"name": "sgd", "betas": (0.1, 0.2)}, "no effect with sgd"),
        (DataConfig, {"train": "t", "validation": True}, "validation"),
    ],
)
def test_faults_in_python(section: type[Section], values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        section.model_validate(values)


def test_aliases_in_python() -> None:
    assert PeftConfig.model_validate({"dim": 4, "lora_alpha": 1}).rank == 4


@pytest.mark.parametrize("name", ["cuda", "cuda:3", "cpu", "mps", "auto"])
def test_devices(name: str) -> None:
    data = {"recipe": "sft", "model": "m", "data": {"train": "t"}, "device": name}
    assert Config.model_validate(data).device == name
