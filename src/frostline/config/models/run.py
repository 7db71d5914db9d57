"""The `evaluation`, `checkpoint` and `tracking` sections: what happens beside the training itself."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from frostline.config.section import Expects, Section

_OPTIONS = Expects("true, false, or a mapping of options")
_Steps = Annotated[int, Field(ge=1)]


class BestConfig(Section):
    """Which checkpoint counts as best. Of equal values of the metric the one with the lower validation loss does."""

    main_key: ClassVar[str | None] = "metric"

    metric: str = Field(min_length=1, description="Name of a metric of the evaluation, such as accuracy or loss.")
    mode: Literal["min", "max"] = Field(description="Whether lower or higher is better.")


class EarlyStoppingConfig(Section):
    """When to stop because the best metric no longer gets better."""

    main_key: ClassVar[str | None] = "patience"

    patience: int = Field(ge=1, description="Evaluations without a new best before training stops.")


class EvaluationConfig(Section):
    """When and how to evaluate."""

    main_key: ClassVar[str | None] = "every"

    every: Annotated[_Steps | Literal["epoch", "never"], Expects("a number of steps of at least 1, epoch or never")] = (
        Field(
            default="epoch",
            description="Evaluate after so many steps, or after each epoch; also at the end unless never.",
        )
    )
    at_start: bool = Field(
        default=True,
        description="Evaluate before the first step too: what the base can do, and that evaluation works.",
    )
    best: BestConfig | None = Field(
        default=None,
        description="Metric that chooses the best checkpoint, the lower loss where it is equal; null is the recipe's.",
    )
    early_stopping: EarlyStoppingConfig | None = Field(default=None, description=EarlyStoppingConfig.__doc__)
    batch_size: int | None = Field(
        default=None, ge=1, description="Examples evaluated at once; null is training's micro-batch."
    )
    max_examples: int | None = Field(default=None, ge=1, description="Validation examples to use at most; null is all.")


class CheckpointConfig(Section):
    """When to save, and how much to keep."""

    main_key: ClassVar[str | None] = "every"

    every: Annotated[_Steps | Literal["epoch", "end"], Expects("a number of steps of at least 1, epoch or end")] = (
        Field(default="epoch", description="Save after so many steps, or after each epoch; always at the end.")
    )
    keep: int = Field(default=2, ge=1, description="Newest checkpoints to keep; best and latest are always kept.")
    fingerprint: Literal["sampled", "full"] = Field(
        default="sampled",
        description="How a checkpoint knows its base: sampled hashes blocks of each tensor, full every byte of the "
        "weight files (at the start of each command). A resumed run stays with the one that it began with.",
    )


class TrackingConfig(Section):
    """Other places that metrics are sent to. Each needs its package."""

    tensorboard: bool = Field(default=False, description="Write TensorBoard events into the run folder.")
    wandb: Annotated[bool | dict[str, Any], _OPTIONS] = Field(
        default=False, description="Weights & Biases; options of init()."
    )
    mlflow: Annotated[bool | dict[str, Any], _OPTIONS] = Field(
        default=False, description="MLflow; options of start_run()."
    )
