"""The whole config: all sections, and what they must not contradict one another in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, cast

from pydantic import AfterValidator, Discriminator, Field, Tag

from frostline.config.models.data import DataConfig
from frostline.config.models.freeze import FreezeConfig
from frostline.config.models.model import ModelConfig, TokenizerConfig
from frostline.config.models.peft import MethodConfig, PeftConfig, is_of_another_method
from frostline.config.models.run import CheckpointConfig, EvaluationConfig, TrackingConfig
from frostline.config.models.training import OptimizerConfig, ScheduleConfig, TrainingConfig
from frostline.config.origin import join_keys
from frostline.config.recipe_names import ALIASES, describe_recipe_names, is_recipe_name, recipe_names
from frostline.config.section import Expects, Fault, Section, never_null
from frostline.config.wording import is_number, show

# Keys that only one recipe reads; setting them with the other would be silently without effect.
_ONLY_FOR: dict[str, tuple[tuple[str, ...], ...]] = {
    "sequence_classification": (
        ("model", "num_labels"),
        ("model", "problem"),
        ("data", "columns", "label"),
        ("data", "columns", "text_pair"),
        ("training", "class_weights"),
    ),
    "causal_lm": (
        ("tokenizer", "chat_template"),
        ("data", "format"),
        ("data", "system"),
        ("data", "train_on"),
        ("data", "columns", "messages"),
        ("data", "columns", "prompt"),
        ("data", "columns", "completion"),
    ),
}

Peft = Annotated[
    Annotated[PeftConfig, Tag("<lora>")] | Annotated[MethodConfig, Tag("<method>")],
    Discriminator(lambda given: "<method>" if is_of_another_method(given) else "<lora>"),
    Expects(f"a mapping with the keys {', '.join(PeftConfig.model_fields)}"),
]


def _known_recipe(name: str) -> str:
    if not is_recipe_name(name):
        raise ValueError(f"there is no recipe {name}")
    return name


class Config(Section):
    """A Frostline run. Relative paths (data, model folders, output_dir) start at the current directory."""

    value_aliases: ClassVar[Mapping[str, Mapping[str, str]]] = {"recipe": ALIASES}

    recipe: Annotated[str, AfterValidator(_known_recipe), Expects(describe_recipe_names, recipe_names)] = Field(
        description="The task: sequence_classification, causal_lm, or one that another package brings.",
        json_schema_extra=lambda schema: schema.update(enum=[*recipe_names()]),
    )
    model: ModelConfig = Field(description=ModelConfig.__doc__)
    tokenizer: TokenizerConfig = Field(default=TokenizerConfig(), description=TokenizerConfig.__doc__)
    freeze_config: FreezeConfig | None = Field(
        default=None, json_schema_extra=never_null, description=FreezeConfig.__doc__
    )
    peft: Peft | None = Field(default=None, description=PeftConfig.__doc__)
    data: DataConfig = Field(description=DataConfig.__doc__)
    training: TrainingConfig = Field(default=TrainingConfig(), description=TrainingConfig.__doc__)
    optimizer: OptimizerConfig = Field(default=OptimizerConfig(), description=OptimizerConfig.__doc__)
    schedule: ScheduleConfig = Field(default=ScheduleConfig(), description=ScheduleConfig.__doc__)
    evaluation: EvaluationConfig = Field(default=EvaluationConfig(), description=EvaluationConfig.__doc__)
    checkpoint: CheckpointConfig = Field(default=CheckpointConfig(), description=CheckpointConfig.__doc__)
    device: Annotated[str, Expects("auto, cpu, cuda, mps, or cuda:N", ("auto", "cpu", "cuda", "mps"))] = Field(
        default="auto",
        pattern=r"^(auto|cpu|mps|cuda(:[0-9]+)?)$",
        description="Where to train; auto takes the fastest there is.",
    )
    tracking: TrackingConfig = Field(default=TrackingConfig(), description=TrackingConfig.__doc__)
    output_dir: str | None = Field(
        default=None, min_length=1, description="Run folder; null is runs/NAME, with the name of the config file."
    )

    @property
    def learning_rate(self) -> float:
        """The learning rate in force: `optimizer.lr`, or 2e-4 with adapters and 2e-5 without."""
        if self.optimizer.lr is not None:
            return self.optimizer.lr
        return _default_lr(self.peft is not None)

    @classmethod
    def faults(cls, given: Mapping[str, Any]) -> Iterator[Fault]:
        if "freeze_config" in given and given["freeze_config"] is None:
            yield Fault(
                ("freeze_config",),
                "`freeze_config` cannot be null: an empty block and no block mean different things",
                "a mapping with keys such as freeze_modules",
                "indent its keys below `freeze_config:`, or remove the line (on the command line too)",
            )
        recipe = given.get("recipe")
        for owner, keys in _ONLY_FOR.items():
            if not isinstance(recipe, str) or recipe not in _ONLY_FOR or recipe == owner:
                continue
            for path in keys:
                value = _lookup(given, path)
                if value not in (None, "none", "auto"):
                    yield Fault(
                        path,
                        f"`{join_keys(path)}` has no effect with the recipe {recipe}",
                        f"read by the recipe {owner}",
                        f"remove `{path[-1]}`, or change the recipe",
                    )
        lr, min_lr = _lookup(given, ("optimizer", "lr")), _lookup(given, ("schedule", "min_lr"))
        default = "" if lr is not None else " (the default)"
        lr = _default_lr(given.get("peft") is not None) if lr is None else lr
        if is_number(lr) and is_number(min_lr) and 0 < lr < min_lr:
            yield Fault(
                ("schedule", "min_lr"),
                f"`schedule.min_lr` {show(min_lr)} is above `optimizer.lr` {show(lr)}{default}",
                "from 0 to optimizer.lr; it is absolute, not a fraction",
                "lower min_lr or raise lr",
            )
        if _lookup(given, ("data", "validation"), 0.1) is None and isinstance(given.get("data"), Mapping):
            for path in (("evaluation", "best"), ("evaluation", "early_stopping")):
                if _lookup(given, path) is not None:
                    yield Fault(
                        path,
                        f"`{join_keys(path)}` needs validation examples, and `data.validation` is null",
                        "data.validation as a fraction, a number or a source",
                        f"set data.validation, or remove `{path[-1]}`",
                    )
        for name in ("best", "early_stopping"):
            if _lookup(given, ("evaluation", "every")) == "never" and _lookup(given, ("evaluation", name)):
                yield Fault(
                    ("evaluation", name),
                    f"`evaluation.{name}` needs evaluations, and `evaluation.every` is never",
                    "a number of steps or epoch",
                    f"set every, or remove {name}",
                )


def _default_lr(has_adapters: bool) -> float:
    return 2e-4 if has_adapters else 2e-5


def _lookup(given: Any, path: tuple[str, ...], default: Any = None) -> Any:
    for key in path:
        if not isinstance(given, Mapping) or key not in given:
            return default
        given = cast("Mapping[str, Any]", given)[key]
    return given
