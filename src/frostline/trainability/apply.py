"""Puts a plan into force on a model: flags, held subtrees, and the plan itself, attached."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from torch import nn

from frostline.errors import PlanMismatchError
from frostline.trainability.attached import attach_plan, built_flags
from frostline.trainability.mode import hold_in_eval
from frostline.trainability.wrapped import require_fitting_wrappers
from frostline.tree import (
    carry_flags_over,
    collector_paused,
    read_model,
    set_trainable,
)

if TYPE_CHECKING:
    from frostline.trainability.plan import TrainabilityPlan


@collector_paused()
def apply_plan(plan: TrainabilityPlan, model: nn.Module) -> None:
    """See `TrainabilityPlan.apply`."""
    modules, every = read_model(model)
    params = every
    if len(set(map(id, every.values()))) < len(every):  # a tied one counts under its first name
        first = {id(param): path for path, param in reversed(every.items())}
        params = {path: param for path, param in every.items() if first[id(param)] == path}
    entries = plan.decisions.values()
    if list(params) != list(plan.decisions):
        _require_same_names(params, plan.decisions)
        entries = [plan.decisions[path] for path in params]  # what was tied when it was planned may not be now
    require_fitting_wrappers(plan, model, "plan.apply")
    flags = {path: param.requires_grad for path, param in every.items()}
    flags.update(built_flags(model) or {})
    attach_plan(model, plan, flags)
    for param, entry in zip(params.values(), entries, strict=True):
        set_trainable(param, entry.trains)
    carry_flags_over(model)
    hold_in_eval(model, plan.frozen_roots, modules=modules)


def _require_same_names(params: Collection[str], planned: Collection[str]) -> None:
    unknown = [path for path in params if path not in planned]
    gone = [path for path in planned if path not in params]
    if unknown or gone:
        raise PlanMismatchError(
            f"the model has {len(unknown)} parameters unknown to the plan and lacks {len(gone)} of it",
            where="plan.apply",
            possible=f"unknown: {unknown[:5]}; gone: {gone[:5]}",
            fix="resolve the plan on this model, or call plan.bind(model) after the step that replaced parameters",
        )
