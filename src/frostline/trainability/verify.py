"""Compares a model and an optimizer with a plan, and tells every difference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn

from frostline.config.wording import shorten_names
from frostline.errors import PlanMismatchError, Problem
from frostline.trainability.wrapped import refuse_flat_parameters, wrapper_problems
from frostline.tree import canonical_named_parameters, is_trainable_dtype, stored_dtype

if TYPE_CHECKING:
    from frostline.trainability.plan import TrainabilityPlan

_MAX_LINES = 12


def verify_plan(plan: TrainabilityPlan, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Raise PlanMismatchError with all differences between `plan` and what is really there."""
    refuse_flat_parameters(model, "plan.verify")
    params = dict(canonical_named_parameters(model, unique=True))
    lines: list[str] = []
    for path, param in params.items():
        decision = plan.decisions.get(path)
        if decision is None:
            lines.append(f"{path}: not in the plan")
            continue
        if decision.trains != param.requires_grad:
            lines.append(f"{path}: planned {_word(decision.trains)}, but is {_word(param.requires_grad)}")
        if decision.path != path and decision.path in params:
            lines.append(f"{path}: planned as one tensor with {decision.path}, but is its own")
        # A packed weight has a shape of its own, and none of it trains.
        if decision.shape != tuple(param.shape) and is_trainable_dtype(stored_dtype(param)):
            lines.append(f"{path}: planned shape {list(decision.shape)}, but is {list(param.shape)}")
    lines.extend(f"{path}: planned, but not in the model" for path in plan.decisions if path not in params)
    if optimizer is not None:
        lines.extend(_optimizer_differences(plan, params, optimizer))
    problems = wrapper_problems(plan, model, "plan.verify")
    without = [path for path in plan.ever_trained if path in params and params[path].is_meta]
    if optimizer is not None and without:
        problems.append(
            Problem(
                f"{len(without)} tensors that train have no values yet (meta device): {shorten_names(without, 5)}",
                "plan.verify",
                "an optimizer that is built when everything that trains has its values",
                "load the weights first; adapters draw their values when prepare is called, so call it on a model with "
                "weights, or load the adapter's values too (to_empty leaves them random memory)",
            )
        )
    if lines:
        shown = "\n".join(lines[:_MAX_LINES]) + (f"\nand {len(lines) - _MAX_LINES} more" * (len(lines) > _MAX_LINES))
        departed = Problem(
            f"the model departed from the plan in {len(lines)} place{'s' if len(lines) > 1 else ''}",
            "plan.verify",
            shown,
            "call plan.bind(model) after the step that changed it, and build the optimizer from plan.ever_trained",
        )
        problems.insert(0, departed)
    if problems:
        raise PlanMismatchError.from_problems(problems)


def _optimizer_differences(
    plan: TrainabilityPlan, params: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer
) -> list[str]:
    path_of = {id(param): path for path, param in params.items()}
    held: dict[int, int] = {}
    for group in optimizer.param_groups:
        for param in group["params"]:
            held[id(param)] = held.get(id(param), 0) + 1
    ever_trained = set(plan.ever_trained)  # the optimizer holds from the start what a later phase trains
    lines: list[str] = []
    strangers = sum(key not in path_of for key in held)
    if strangers:
        what = "a tensor that is not a parameter" if strangers == 1 else f"{strangers} tensors that are not parameters"
        lines.append(f"the optimizer holds {what} of the model: build it after the step that replaced parameters")
    for key, count in held.items():
        path = path_of.get(key)
        if path is None:
            pass
        elif path not in ever_trained:
            lines.append(f"{path}: frozen, but in the optimizer")
        if count > 1:
            lines.append(f"{path or 'a tensor'}: {count} times in the optimizer")
    lines.extend(
        f"{path}: {_not_held(plan, path)}"
        for path in plan.ever_trained
        if path in params and id(params[path]) not in held
    )
    return lines


def _not_held(plan: TrainabilityPlan, path: str) -> str:
    if plan.decisions[path].trains:
        return "trains, but is not in the optimizer"
    phase = next(index for index in range(len(plan.phases) + 1) if path in plan.in_phase(index).trainable)
    return f"trains in phase {phase} (the optimizer holds plan.ever_trained from the start), but is not in it"


def _word(trains: bool) -> str:
    return "trained" if trains else "frozen"
