"""What a config and its data come to: the number of steps, the steps of phases, the PEFT method."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from frostline.adapters import PEFT, parse_method
from frostline.config.load import LoadedConfig
from frostline.trainability import TrainabilityPlan
from frostline.training.batches import num_steps

if TYPE_CHECKING:
    from frostline.recipes.recipe import PreparedData


def method_of(loaded: LoadedConfig) -> PEFT | None:
    """The PEFT method of the config, its initial values seeded by `training.seed`; None without a `peft` block."""
    block = loaded.data.get("peft")
    if block is None:
        return None
    return parse_method(block, loaded.origins.below("peft")).seeded(loaded.config.training.seed)


def with_steps(plan: TrainabilityPlan, loaded: LoadedConfig, data: PreparedData) -> TrainabilityPlan:
    """`plan` with the steps at which its phases begin, which must lie inside the run."""
    return plan.place_phases(steps_per_epoch(loaded, data), total_steps(loaded, data))


def steps_per_epoch(loaded: LoadedConfig, data: PreparedData) -> int:
    """Optimizer steps of one pass over the training examples."""
    return math.ceil(len(data.train) / loaded.config.training.batch_size)


def total_steps(loaded: LoadedConfig, data: PreparedData) -> int:
    """Optimizer steps of the whole run."""
    training = loaded.config.training
    return num_steps(len(data.train), training.batch_size, epochs=training.epochs, max_steps=training.max_steps)
