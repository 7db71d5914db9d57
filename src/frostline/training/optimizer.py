"""The optimizer of a run: exactly the parameters that the plan trains, grouped by selectors, in path order.

Knows nothing of schedules: every group keeps its peak rate as `initial_lr`, which the schedule reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import Parameter

from frostline.config.models import OptimizerConfig, OptimizerGroupConfig
from frostline.config.origin import Origins
from frostline.errors import ConfigError
from frostline.selectors import parse_selector, require_matches
from frostline.trainability import TrainabilityPlan
from frostline.tree import ModuleTree, canonical_named_parameters

#: Peak rates when the config names none: adapters start from zero and bear more than pretrained weights do.
DEFAULT_LR_PEFT, DEFAULT_LR_FULL = 2e-4, 2e-5

#: Config name -> torch class, and which of our optional keys it takes.
OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], frozenset[str]]] = {
    "adamw": (torch.optim.AdamW, frozenset({"betas", "eps"})),
    "adam": (torch.optim.Adam, frozenset({"betas", "eps"})),
    "nadam": (torch.optim.NAdam, frozenset({"betas", "eps"})),
    "radam": (torch.optim.RAdam, frozenset({"betas", "eps"})),
    "adamax": (torch.optim.Adamax, frozenset({"betas", "eps"})),
    "sgd": (torch.optim.SGD, frozenset({"momentum"})),
    "rmsprop": (torch.optim.RMSprop, frozenset({"eps", "momentum"})),
    "adagrad": (torch.optim.Adagrad, frozenset({"eps"})),
    "adadelta": (torch.optim.Adadelta, frozenset({"eps"})),
    "adafactor": (torch.optim.Adafactor, frozenset()),
}

#: One kernel a step over all parameters, on CPU, CUDA and MPS; for the others torch's default is the fastest.
FUSED = {"adamw", "adam", "sgd"}


def peak_learning_rate(config: OptimizerConfig, plan: TrainabilityPlan) -> float:
    """The rate the config names, else 2e-4 with PEFT and 2e-5 without."""
    if config.lr is not None:
        return config.lr
    return DEFAULT_LR_PEFT if plan.peft else DEFAULT_LR_FULL


def build_optimizer(
    model: nn.Module, plan: TrainabilityPlan, config: OptimizerConfig, origins: Origins | None = None
) -> torch.optim.Optimizer:
    """An optimizer over `plan.trainable` alone. Each group carries `names` (paths, in order) and `initial_lr`.

    `optimizer.groups` come first in their order; the last group holds every parameter that no selector took.

    Raises:
        ConfigError: unknown optimizer, a key it does not take, a group that gets no trained parameter, or a
            parameter that two groups claim.
    """
    origins = (origins or Origins()).below("optimizer")
    if config.name not in OPTIMIZERS:
        raise ConfigError(
            f"unknown optimizer {config.name!r}", where=origins.at("name"), possible=", ".join(sorted(OPTIMIZERS))
        )
    kind, takes = OPTIMIZERS[config.name]
    lr = peak_learning_rate(config, plan)
    groups: list[dict[str, Any]] = []
    left = _trained_parameters(model, plan)
    for paths, settings in _selected_groups(model, plan, config, origins):
        group: dict[str, Any] = {"params": [left.pop(path) for path in paths], "names": list(paths)}
        group["lr"] = settings.lr if settings.lr is not None else lr
        if settings.weight_decay is not None:
            group["weight_decay"] = settings.weight_decay
        groups.append(group)
    if left:
        groups.append({"params": list(left.values()), "names": list(left), "lr": lr})

    arguments: dict[str, Any] = {"lr": lr, "weight_decay": config.weight_decay}
    for key in ("betas", "eps", "momentum"):
        if key in takes:
            arguments[key] = getattr(config, key)
        elif key in config.model_fields_set:
            raise ConfigError(
                f"optimizer {config.name} takes no {key!r}",
                where=origins.at(key),
                possible=", ".join(sorted({"lr", "weight_decay", "groups"} | takes)),
                fix=f"remove `optimizer.{key}`",
            )
    if config.name in FUSED:
        arguments["fused"] = True
    optimizer = kind(groups, **arguments)
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return optimizer


def _trained_parameters(model: nn.Module, plan: TrainabilityPlan) -> dict[str, Parameter]:
    """Trained parameters by path, in model order, a tied one once."""
    trainable = set(plan.trainable)
    seen: set[int] = set()
    found: dict[str, Parameter] = {}
    for path, param in canonical_named_parameters(model):
        if path in trainable and id(param) not in seen:
            seen.add(id(param))
            found[path] = param
    return found


def _selected_groups(
    model: nn.Module, plan: TrainabilityPlan, config: OptimizerConfig, origins: Origins
) -> list[tuple[list[str], OptimizerGroupConfig]]:
    if not config.groups:
        return []
    tree = ModuleTree.from_model(model)
    trained = _trained_parameters(model, plan)
    owner: dict[str, int] = {}
    found: list[tuple[list[str], OptimizerGroupConfig]] = []
    for number, settings in enumerate(config.groups):
        here = origins.below("groups", number, "select")
        selector = parse_selector(settings.select, here)
        (selection,) = require_matches([selector], tree)
        selected = {tree.params[index].path for index, is_set in enumerate(selection.params) if is_set}
        paths = [path for path in trained if path in selected]
        if not paths and selector.optional:
            continue
        if not paths:
            raise ConfigError(
                f"optimizer group {number} gets no parameter: none of the {len(selected)} that {selector} selects trains",
                where=here.at(),
                possible=f"trained: {_shortened(list(trained))}",
                fix="select trained parameters (those of adapters with {param: ...}), or thaw these in "
                "`freeze_config.unfreeze_modules`",
            )
        for path in paths:
            if path in owner:
                raise ConfigError(
                    f"optimizer groups {owner[path]} and {number} both claim {path}",
                    where=here.at(),
                    possible="each parameter in one group at most",
                    fix="take it out of one of them with `except: [...]`",
                )
            owner[path] = number
        found.append((paths, settings))
    return found


def _shortened(paths: Sequence[str], limit: int = 6) -> str:
    more = f", ... ({len(paths)} in all)" if len(paths) > limit else ""
    return ", ".join(paths[:limit]) + more
