"""From a config to everything that plan, train, evaluate and predict start from: tokenizer, data, head, model, task.

Knows the order in which these need one another; freezing, adapters, the loop and run folders are for who calls it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from frostline.config.origin import Origins
from frostline.data.labels import LabelMap
from frostline.data.rows import Rows
from frostline.errors import CheckpointError
from frostline.integrations.hf_models.build import Head, MetaModel, build_meta, read_config
from frostline.integrations.hf_models.hub import local_folder
from frostline.integrations.hf_models.load import LoadedModel, load_model
from frostline.integrations.hf_models.location import ModelLocation, resolve_location
from frostline.integrations.hf_models.startup import importing_model_code
from frostline.integrations.hf_models.tokenizer import load_tokenizer

from .factory_models import factory_of, lacking, refuse_lacking, require_outputs
from .recipe import PreparedData, Recipe
from .registry import find_recipe

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from frostline.config.models.config import Config
    from frostline.training.task import Task

LABELS_FILE = "labels.json"


@dataclass(frozen=True)
class Assembly:
    """The parts of a run, from the config; the model is built by `build_meta_model` and `load_model` when wanted."""

    recipe: Recipe
    config: Config
    origins: Origins
    location: ModelLocation
    tokenizer: PreTrainedTokenizerBase
    model_config: PretrainedConfig
    data: PreparedData | None
    labels: LabelMap | None
    head: Head
    say: Callable[[str], None]
    factory_model: MetaModel | None = None  # where the config names a factory

    @property
    def task_type(self) -> str:
        """`SEQ_CLS` or `CAUSAL_LM`, as in peft's `adapter_config.json`."""
        return self.recipe.task_type

    def build_meta_model(self) -> MetaModel:
        """The model without weights, and which of its parameters are new."""
        if self.factory_model is not None:
            return self.factory_model
        return build_meta(self.location, self.config.model, self.head, say=self.say)

    def load_model(self, expected: MetaModel | None = None) -> LoadedModel:
        """The model with weights, new parameters drawn from `training.seed`; checked against `expected`."""
        factory = factory_of(self.config, self.origins)
        if factory is not None:
            return factory.load()
        return load_model(
            self.location,
            self.config.model,
            self.head,
            seed=self.config.training.seed,
            expected=expected,
            say=self.say,
        )

    def build_task(self) -> Task:
        """The task that the loop trains and evaluates."""
        weights = self.data.label_weights if self.data is not None else None
        return self.recipe.build_task(self.config, self.tokenizer, self.labels, weights)

    def predict(self, model: nn.Module, rows: Rows, **options: Any) -> list[dict[str, Any]]:
        """`rows` with predictions added; `options` are the recipe's (`batch_size`, `max_new_tokens`)."""
        return self.recipe.predict(
            model, self.tokenizer, rows, self.config, model_config=self.model_config, labels=self.labels, **options
        )

    def write_extras(self, directory: Path) -> None:
        """Writes the tokenizer with its chat template, and the labels if there are any, beside a checkpoint's files."""
        self.tokenizer.save_pretrained(directory)
        if self.labels is not None:
            record = {"problem": self.labels.problem, "names": list(self.labels.names)}
            (directory / LABELS_FILE).write_text(
                json.dumps(record, ensure_ascii=False, indent=2) + "\n", encoding="utf-8"
            )


def assemble(
    config: Config,
    origins: Origins,
    *,
    checkpoint_part: Path | None = None,
    with_data: bool = True,
    encode: bool = True,
    say: Callable[[str], None] = lambda line: None,
    factory_model: MetaModel | None = None,
) -> Assembly:
    """Finds the model, loads tokenizer and data, and decides the head. Loads no weights.

    Args:
        checkpoint_part: the `adapter/` or `trained/` folder of a finished run: its labels are used, and its data must
            fit them. None makes labels from the training data.
        with_data: False leaves the data alone, to predict on rows given elsewhere; classification then needs
            `checkpoint_part`.
        encode: False leaves texts that need not be tokenized to know their number to the first use.
        say: is told of slow work before it starts.
        factory_model: what the config's factory builds on the meta device, where that is at hand; else built here.

    Raises:
        ConfigError, ModelError, DataError: see the parts.
    """
    recipe = find_recipe(config.recipe, origins.at("recipe"))
    factory = factory_of(config, origins)
    if factory is not None:
        factory_model = factory_model or factory.build_meta()
        if lines := lacking(factory_model.model, config):
            refuse_lacking(config, origins, lines)
        location = ModelLocation(f"factory:{factory.name}", "factory", origin=factory.origin)
        model_config: PretrainedConfig = factory_model.model.config  # type: ignore[assignment]
    else:
        assert config.model.name_or_path is not None
        where = origins.at("model", "name_or_path")
        location = resolve_location(config.model.name_or_path, where, config.model.revision)
        folder = local_folder(location, weights=False, say=say)
        model_config = read_config(folder, config.model)
    tokenizer = load_tokenizer(
        location,
        config.tokenizer,
        trust_remote_code=config.model.trust_remote_code,
        origin=origins.at("tokenizer", "name_or_path"),
        say=say,
    )
    labels = read_labels(checkpoint_part) if checkpoint_part is not None else None
    data = None
    if with_data:
        with importing_model_code():
            data = recipe.prepare_data(config, origins, tokenizer, model_config, labels)
            if encode:
                data.encode()
    labels = data.labels if data is not None else labels
    if factory_model is not None and recipe.task_type == "SEQ_CLS":
        require_outputs(factory_model.model, labels, origins)
    head = recipe.head(labels, tokenizer)
    return Assembly(recipe, config, origins, location, tokenizer, model_config, data, labels, head, say, factory_model)


def read_labels(directory: Path) -> LabelMap | None:
    """The labels that `write_extras` wrote into `directory`; None when that run had none.

    Raises:
        CheckpointError: the file is damaged.
    """
    file = directory / LABELS_FILE
    if not file.is_file():
        return None
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        return LabelMap(tuple(str(name) for name in record["names"]), record["problem"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{file} is damaged: {error}",
            where=str(file),
            fix="use another checkpoint of the run",
            possible="the names and the kind of the labels, as the run wrote them",
        ) from None
