"""How many optimizer steps a config and its data come to, and where in them phases begin."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from frostline.config.load import LoadedConfig
from frostline.trainability import TrainabilityPlan
from frostline.training.batches import num_steps

if TYPE_CHECKING:
    from frostline.recipes.recipe import PreparedData


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
