"""The config of a smoke run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from frostline.config.load import LoadedConfig


def shorten(loaded: LoadedConfig) -> LoadedConfig:
    """The config of a smoke run: two steps, the examples that they take, few to validate on, the rest as it is.

    With phases, one step before them and one in each.

    Sources are still read whole: labels and duplicates are those of the real run. `class_weights: balanced` counts all
    training examples, so all of them stay.
    """
    config = loaded.config
    phases = config.freeze_config.phases if config.freeze_config is not None else ()
    steps = 1 + max(1, len(phases))
    num_train = steps * config.training.batch_size
    if config.training.class_weights == "balanced":
        max_examples = config.data.max_examples
    else:
        max_examples = min(config.data.max_examples or num_train, num_train)
    warmup = config.schedule.warmup
    validation = min(config.evaluation.max_examples or 32, 32)
    return replace(
        loaded,
        data=_one_step_a_phase(loaded.data),
        config=config.model_copy(
            update={
                "training": config.training.model_copy(update={"epochs": None, "max_steps": steps}),
                "data": config.data.model_copy(update={"max_examples": max_examples}),
                "schedule": config.schedule.model_copy(
                    update={"warmup": min(warmup, 1) if isinstance(warmup, int) else warmup}
                ),
                "evaluation": config.evaluation.model_copy(
                    update={"every": "epoch", "max_examples": validation, "early_stopping": None}
                ),
            }
        ),
    )


def _one_step_a_phase(data: dict[str, Any]) -> dict[str, Any]:
    block: dict[str, Any] = data.get("freeze_config") or {}
    if not block.get("phases"):
        return data
    phases = [{**phase, "at": {"step": number}} for number, phase in enumerate(block["phases"], start=1)]
    return {**data, "freeze_config": {**block, "phases": phases}}
