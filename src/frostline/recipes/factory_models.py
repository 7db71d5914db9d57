"""What a recipe needs of a model that a factory builds, and the data line of a plan that cannot become a run."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from torch import nn

from frostline.config.origin import Origins
from frostline.data.encode import DeferredData
from frostline.data.labels import LabelMap
from frostline.data.rows import Rows
from frostline.errors import ModelError
from frostline.integrations.factory import Factory

from .parts import read_parts
from .recipe import PreparedData

if TYPE_CHECKING:
    from frostline.config.models.config import Config

_INPUTS = ("input_ids", "attention_mask")


def factory_of(config: Config, origins: Origins) -> Factory | None:
    """The factory that `config.model` names, if it names one."""
    model = config.model
    if model.factory is None:
        return None
    origin = origins.at("model", "factory")
    return Factory(model.factory, model.factory_arguments, model.dtype, config.training.seed, origin)


def lacking(model: nn.Module, config: Config) -> tuple[str, ...]:
    """What is missing to train `model` with the config's recipe, one line each; empty where nothing is."""
    lines: list[str] = []
    if config.tokenizer.name_or_path is None:
        lines.append("tokenizer.name_or_path, because a factory brings no tokenizer")
    own: Any = getattr(model, "config", None)
    if not hasattr(own, "get_text_config"):
        lines.append("a model whose `config` is one of transformers (PretrainedConfig)")
    parameters = inspect.signature(model.forward).parameters
    takes_any = any(entry.kind is entry.VAR_KEYWORD for entry in parameters.values())
    absent = [name for name in _INPUTS if name not in parameters]
    if absent and not takes_any:
        lines.append(f"a model whose forward takes {' and '.join(absent)}")
    if config.recipe == "causal_lm" and not hasattr(model, "get_input_embeddings"):
        lines.append("a model with get_input_embeddings()")
    return tuple(lines)


def refuse_lacking(config: Config, origins: Origins, lines: Sequence[str]) -> NoReturn:
    """Raises the ModelError that says what `lacking` found."""
    raise ModelError(
        f"the recipe {config.recipe} cannot run with the model that {config.model.factory} builds",
        where=origins.at("model", "factory"),
        possible="\n".join(f"it needs {line}" for line in lines),
        fix="supply that; `frostline plan` and the library (frostline.prepare) work with any nn.Module as it is",
    )


def require_outputs(model: nn.Module, labels: LabelMap | None, origins: Origins) -> None:
    """Refuses a classifier with another number of outputs than the data has labels: nobody adds a head to it.

    Raises:
        ModelError: names both numbers.
    """
    own: Any = getattr(model, "config", None)
    num_outputs = getattr(own, "num_labels", None)
    if labels is None or num_outputs == labels.num_labels:
        return
    raise ModelError(
        f"the model of the factory has {num_outputs} outputs, and the data has {labels.num_labels} labels",
        where=origins.at("model", "factory"),
        possible=f"labels: {', '.join(labels.names[:8])}",
        fix="build the model with that many outputs, as through model.factory_arguments",
    )


def count_data(config: Config, origins: Origins) -> PreparedData:
    """The examples that the config names, counted and not encoded, for a plan without a tokenizer.

    Raises:
        DataError: see `read_parts`.
    """

    def counted(rows: Rows | None) -> DeferredData | None:
        return None if rows is None else DeferredData(len(rows), _not_encoded)

    parts = read_parts(config, origins, lambda rows, _: tuple(rows.column_names))
    train = counted(parts.train)
    assert train is not None
    return PreparedData(
        train=train,
        validation=counted(parts.validation),
        test=counted(parts.test),
        max_length=None,
        num_read=parts.num_read,
        num_duplicates=parts.num_duplicates,
        notes=parts.notes,
    )


def _not_encoded() -> NoReturn:
    raise AssertionError("a plan without a tokenizer encodes nothing")
