"""The `training`, `optimizer` and `schedule` sections. Must not import torch or know any model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from frostline.config.models.selection import RawSelectors, selector_faults
from frostline.config.section import Expects, Fault, Section
from frostline.config.wording import is_number, show


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value  # YAML has only lists


def _default_epochs(values: dict[str, Any]) -> float | None:
    return None if values.get("max_steps") is not None else 1.0


class TrainingConfig(Section):
    """How long, in which batches and with which numbers to train."""

    max_steps: int | None = Field(default=None, ge=1, description="Optimizer steps to train. Excludes epochs.")
    epochs: float | None = Field(
        default_factory=_default_epochs,
        gt=0,
        description="Passes over the training examples; 1 unless max_steps is given. Excludes max_steps.",
    )
    batch_size: int = Field(default=32, ge=1, description="Examples of one optimizer step, over all devices.")
    micro_batch_size: int | None = Field(
        default=None,
        ge=1,
        description="Examples that one device holds at once; must divide batch_size. Null is all of them.",
    )
    max_grad_norm: float | None = Field(default=1.0, gt=0, description="Clip gradients to this norm; null never clips.")
    precision: Literal["fp32", "bf16"] = Field(default="fp32", description="bf16 computes under bfloat16 autocast.")
    param_dtype: Literal["auto", "float32", "bfloat16", "float64"] = Field(
        default="auto", description="Number format of trained parameters."
    )
    gradient_checkpointing: Literal["none", "all"] = Field(
        default="none", description="all: recompute activations in backward, which saves memory and costs time."
    )
    class_weights: Annotated[
        Literal["none", "balanced"] | dict[str, Annotated[float, Field(ge=0)]],
        Expects("none, balanced, or a mapping of each label to a weight of at least 0"),
    ] = Field(default="none", description="Weights of the labels in the loss.")
    label_smoothing: float = Field(default=0.0, ge=0, lt=1, description="Share of each target spread over all labels.")
    seed: int = Field(default=0, ge=0, lt=2**63, description="Seed of everything random.")
    deterministic: bool = Field(
        default=True,
        description="Choose kernels that give the same bits each time; where an operation has none, torch warns with "
        "its name and runs another.",
    )
    prove: bool = Field(
        default=True, description="Check in the first steps, and at the end, that just the plan has trained."
    )

    @classmethod
    def faults(cls, given: Mapping[str, Any]) -> Iterator[Fault]:
        epochs, max_steps = given.get("epochs"), given.get("max_steps")
        if epochs is not None and max_steps is not None:
            yield Fault(
                ("max_steps",),
                f"both `training.epochs` ({show(epochs)}) and `training.max_steps` "
                f"({show(max_steps)}) say when to stop",
                "exactly one of them",
                "remove one; on the command line, training.epochs=null or training.max_steps=null removes it",
            )
        if "epochs" in given and epochs is None and max_steps is None:
            yield Fault(
                ("epochs",),
                "neither `training.epochs` nor `training.max_steps` says when to stop",
                "exactly one of them",
                "write `epochs: 1` or `max_steps: 1000`",
            )
        micro, batch = given.get("micro_batch_size"), given.get("batch_size", 32)
        if isinstance(micro, int) and isinstance(batch, int) and min(micro, batch) >= 1 and batch % micro:
            divisors = [size for size in range(1, batch + 1) if batch % size == 0]
            nearest = sorted(sorted(divisors, key=lambda size: abs(size - micro))[:4])
            default = "" if "batch_size" in given else " (the default)"
            yield Fault(
                ("micro_batch_size",),
                f"`training.micro_batch_size` {micro} does not divide `training.batch_size` {batch}{default}",
                f"nearest divisors of {batch}: {nearest}"[:-1].replace("[", ""),
                "write one of them, or change batch_size",
            )


class ParameterGroupConfig(Section):
    """Parameters that train with their own learning rate or weight decay."""

    main_key: ClassVar[str | None] = "select"

    select: RawSelectors = Field(description="Selectors of the group's parameters.")
    lr: float | None = Field(default=None, gt=0, description="Learning rate of the group; null is the optimizer's.")
    weight_decay: float | None = Field(
        default=None, ge=0, description="Weight decay of the group; null is the optimizer's."
    )

    @classmethod
    def faults(cls, given: Mapping[str, Any]) -> Iterator[Fault]:
        if "select" in given:
            yield from selector_faults("select", given["select"])
            if given["select"] in ([], ()):
                yield Fault(
                    ("select",),
                    "`select` is an empty list, so the group would be empty",
                    "a selector or a list of selectors",
                    "name the group's parameters, or remove the group",
                )
        if not {"lr", "weight_decay"} & set(given):
            yield Fault(
                (),
                "the group sets neither `lr` nor `weight_decay`",
                "one of them or both",
                "add `lr: ...`, or remove the group",
            )


OptimizerName = Literal[
    "adamw", "adam", "sgd", "rmsprop", "adagrad", "adafactor", "adadelta", "adamax", "nadam", "radam"
]
#: Which optimizers read a setting; setting it for another one would be silently without effect.
OPTIMIZERS_BY_SETTING: dict[str, tuple[str, ...]] = {
    "betas": ("adamw", "adam", "adamax", "nadam", "radam"),
    "eps": ("adamw", "adam", "adamax", "nadam", "radam", "rmsprop", "adagrad", "adadelta"),
    "momentum": ("sgd", "rmsprop"),
}


class OptimizerConfig(Section):
    """Which optimizer, with which settings."""

    main_key: ClassVar[str | None] = "name"

    name: OptimizerName = Field(default="adamw", description="One of torch's optimizers.")
    lr: float | None = Field(
        default=None, gt=0, description="Learning rate; null is 2e-4 with adapters and 2e-5 without."
    )
    weight_decay: float = Field(default=0.0, ge=0, description="Weight decay.")
    betas: Annotated[
        tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]],
        BeforeValidator(_tuple),
        Expects("a list of two numbers from 0 to below 1, such as [0.9, 0.999]"),
    ] = Field(default=(0.9, 0.999), description="Decay rates of the running averages (Adam and its kin).")
    eps: float = Field(default=1e-8, gt=0, description="Added to the denominator for stability.")
    momentum: float = Field(default=0.0, ge=0, lt=1, description="Momentum (sgd, rmsprop).")
    groups: Annotated[tuple[ParameterGroupConfig, ...], BeforeValidator(_tuple)] = Field(
        default=(),
        description="Groups of parameters with their own settings; the first group that selects a parameter has it.",
    )

    @classmethod
    def faults(cls, given: Mapping[str, Any]) -> Iterator[Fault]:
        name = given.get("name", "adamw")
        for setting, readers in OPTIMIZERS_BY_SETTING.items():
            if setting in given and name not in readers and isinstance(name, str):
                yield Fault(
                    (setting,),
                    f"`optimizer.{setting}` has no effect with {name}",
                    f"read by {', '.join(readers)}",
                    f"remove `{setting}`, or choose such an optimizer",
                )


class ScheduleConfig(Section):
    """How the learning rate moves."""

    main_key: ClassVar[str | None] = "name"

    name: Literal["cosine", "linear", "constant"] = Field(
        default="linear", description="Shape of the decay after warm-up."
    )
    warmup: Annotated[
        Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0, lt=1)],
        Expects("a number of steps (100) or a fraction of all steps from 0 to below 1 (0.05)"),
    ] = Field(default=0, description="Steps, or fraction of all steps, in which the rate rises from 0.")
    min_lr: float = Field(default=0.0, ge=0, description="Learning rate at the end of the decay; absolute.")

    @classmethod
    def faults(cls, given: Mapping[str, Any]) -> Iterator[Fault]:
        if given.get("name") == "constant" and is_number(given.get("min_lr")) and given["min_lr"] > 0:
            yield Fault(
                ("min_lr",),
                "`schedule.min_lr` has no effect with the constant schedule",
                "read by cosine and linear",
                "remove `min_lr`, or choose such a schedule",
            )
