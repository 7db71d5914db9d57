"""The optimizer of a run: exactly the parameters that the plan trains, grouped by selectors, in path order.

Knows nothing of schedules: every group keeps its peak rate as `initial_lr`, which the schedule reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import Parameter

from frostline.config.models import OptimizerConfig
from frostline.config.models.training import OPTIMIZERS_BY_SETTING
from frostline.config.origin import Origins
from frostline.errors import ConfigError
from frostline.selectors import parse_selectors, require_matches
from frostline.trainability import TrainabilityPlan
from frostline.tree import ModuleTree, canonical_named_parameters

#: Config name -> torch class. Which optional keys it takes is `OPTIMIZERS_BY_SETTING`.
OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adamax": torch.optim.Adamax,
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "adafactor": torch.optim.Adafactor,
}

#: One kernel a step over all parameters, on CPU, CUDA and MPS; for the others torch's default is the fastest.
FUSED = {"adamw", "adam", "sgd"}


def build_optimizer(
    model: nn.Module,
    plan: TrainabilityPlan,
    config: OptimizerConfig,
    *,
    lr: float,
    origins: Origins | None = None,
) -> torch.optim.Optimizer:
    """An optimizer over `plan.ever_trained` alone: what trains now, and what a later phase trains.

    What is frozen at the moment has no gradient, and torch's optimizers leave such a parameter and its state alone.

    `config.groups` come first, in their order; a parameter that several select belongs to the first. The last group
    holds what no selector took. Each group carries `names` (paths, in the order of its parameters) and `initial_lr`,
    `own_lr: True` where it names its rate itself, so that phases leave it, and `max_lr` where a phase changes the rate.

    Args:
        lr: peak learning rate of groups that name none (`Config.learning_rate`).
        origins: of the whole config, for messages.

    Raises:
        SelectorError: a group's selector matches nothing.
        ConfigError: a group gets no trained parameter.
    """
    kind = OPTIMIZERS[config.name]
    trained = _trained_parameters(model, plan)
    groups = _selected_groups(model, trained, config, lr, (origins or Origins()).below("optimizer", "groups"))
    taken = {name for group in groups for name in group["names"]}
    rest = {path: param for path, param in trained.items() if path not in taken}
    if rest:
        groups.append({"params": list(rest.values()), "names": list(rest), "lr": lr})
    arguments: dict[str, Any] = {
        key: getattr(config, key) for key, readers in OPTIMIZERS_BY_SETTING.items() if config.name in readers
    }
    if config.name in FUSED and not (arguments.get("momentum") and _starts_in_parts(plan, trained)):
        arguments["fused"] = True
    optimizer = kind(groups, lr=lr, weight_decay=config.weight_decay, **arguments)  # pyright: ignore[reportCallIssue]
    later = [phase.lr for phase in plan.phases if phase.lr is not None]
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
        if later and not group.get("own_lr"):
            group["max_lr"] = max(lr, *later)
    return optimizer


def _trained_parameters(model: nn.Module, plan: TrainabilityPlan) -> dict[str, Parameter]:
    """Parameters that train in some phase, by path, in model order, a tied one once."""
    trained = set(plan.ever_trained)
    return {path: param for path, param in canonical_named_parameters(model, unique=True) if path in trained}


def _starts_in_parts(plan: TrainabilityPlan, trained: Mapping[str, Parameter]) -> bool:
    """Whether parameters may get their first gradient in different steps: torch's fused SGD cannot start that way.

    It wants the momentum of all or of none to be there.
    """
    return bool(plan.phases) or any(plan.decisions[path].conditional for path in trained)


def _selected_groups(
    model: nn.Module, trained: Mapping[str, Parameter], config: OptimizerConfig, lr: float, origins: Origins
) -> list[dict[str, Any]]:
    if not config.groups:
        return []
    tree = ModuleTree.from_model(model)
    owner: dict[str, int] = {}
    groups: list[dict[str, Any]] = []
    for number, settings in enumerate(config.groups):
        here = origins.below(number, "select")
        selectors = parse_selectors(settings.select, here)
        selected: set[str] = set()
        for selection in require_matches(selectors, tree):
            selected |= {ref.path for ref, is_set in zip(tree.params, selection.params, strict=True) if is_set}
        matching = [path for path in trained if path in selected]
        paths = [path for path in matching if path not in owner]
        if not paths and all(selector.optional for selector in selectors):
            continue
        if not paths:
            earlier = sorted({f"group {owner[path]}" for path in matching})
            reason = f"{', '.join(earlier)} took them all" if earlier else "none of them trains"
            raise ConfigError(
                f"optimizer group {number} gets no parameter: it selects {len(selected)}, but {reason}",
                where=here.at(),
                possible=f"trained: {_shortened(list(trained))}",
                fix="select trained parameters (those of adapters with {param: ...}), put the narrower group first, "
                "or thaw these in `freeze_config.unfreeze_modules`",
            )
        owner |= dict.fromkeys(paths, number)
        group: dict[str, Any] = {"params": [trained[path] for path in paths], "names": paths}
        group["lr"] = lr if settings.lr is None else settings.lr
        if settings.lr is not None:
            group["own_lr"] = True
        if settings.weight_decay is not None:
            group["weight_decay"] = settings.weight_decay
        groups.append(group)
    return groups


def _shortened(paths: Sequence[str], limit: int = 6) -> str:
    more = f", ... ({len(paths)} in all)" if len(paths) > limit else ""
    return ", ".join(paths[:limit]) + more
