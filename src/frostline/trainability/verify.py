"""Compares a model, an optimizer or another plan with a plan, and tells every difference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from frostline.errors import PlanMismatchError
from frostline.tree import canonical_named_parameters

if TYPE_CHECKING:
    from frostline.trainability.plan import TrainabilityPlan

_MAX_LINES = 12


def verify_plan(plan: TrainabilityPlan, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Raise PlanMismatchError with all differences between `plan` and what is really there."""
    params = dict(canonical_named_parameters(model, unique=True))
    lines: list[str] = []
    for path, param in params.items():
        decision = plan.decisions.get(path)
        if decision is None:
            lines.append(f"{path}: not in the plan")
            continue
        if decision.trains != param.requires_grad:
            lines.append(f"{path}: planned {_word(decision.trains)}, but is {_word(param.requires_grad)}")
        if decision.shape != tuple(param.shape):
            lines.append(f"{path}: planned shape {list(decision.shape)}, but is {list(param.shape)}")
    lines.extend(f"{path}: planned, but not in the model" for path in plan.decisions if path not in params)
    if optimizer is not None:
        lines.extend(_optimizer_differences(plan, params, optimizer))
    if lines:
        shown = "\n".join(lines[:_MAX_LINES]) + (f"\nand {len(lines) - _MAX_LINES} more" * (len(lines) > _MAX_LINES))
        raise PlanMismatchError(
            f"the model departed from the plan in {len(lines)} place{'s' if len(lines) > 1 else ''}",
            where="plan.verify",
            possible=shown,
            fix="call plan.bind(model) after the step that changed it, and build the optimizer from plan.trainable",
        )


def _optimizer_differences(
    plan: TrainabilityPlan, params: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer
) -> list[str]:
    path_of = {id(param): path for path, param in params.items()}
    held: dict[int, int] = {}
    for group in optimizer.param_groups:
        for param in group["params"]:
            held[id(param)] = held.get(id(param), 0) + 1
    lines: list[str] = []
    for key, count in held.items():
        path = path_of.get(key)
        if path is None:
            lines.append("the optimizer holds a tensor that is not a parameter of the model")
        elif path not in plan.decisions or not plan.decisions[path].trains:
            lines.append(f"{path}: frozen, but in the optimizer")
        if count > 1:
            lines.append(f"{path or 'a tensor'}: {count} times in the optimizer")
    lines.extend(
        f"{path}: trains, but is not in the optimizer"
        for path in plan.trainable
        if path in params and id(params[path]) not in held
    )
    return lines


def diff_plans(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Differences of two plans in their JSON form, one line a parameter."""
    left: Mapping[str, Any] = ours["parameters"]
    right: Mapping[str, Any] = theirs["parameters"]
    lines: list[str] = []
    for path, entry in left.items():
        other = right.get(path)
        if other is None:
            lines.append(f"- {path}: {_word(entry['trains'])}, not in the other plan")
        elif entry.get("rows") != other.get("rows"):
            lines.append(f"~ {path}: rows {entry.get('rows')} -> {other.get('rows')}")
        elif entry["shape"] != other["shape"]:
            lines.append(f"~ {path}: shape {entry['shape']} -> {other['shape']}")
        elif entry["trains"] != other["trains"]:
            lines.append(
                f"~ {path}: {_word(entry['trains'])} -> {_word(other['trains'])} ({entry['rule']} -> {other['rule']})"
            )
    lines.extend(
        f"+ {path}: {_word(entry['trains'])}, only in the other plan"
        for path, entry in right.items()
        if path not in left
    )
    return lines


def _word(trains: bool) -> str:
    return "trained" if trains else "frozen"
