"""The plan in force, remembered on the model itself, with the flags that the model was built with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from frostline.errors import PlanMismatchError
from frostline.tree import unwrap

if TYPE_CHECKING:
    from frostline.trainability.plan import TrainabilityPlan

_ATTRIBUTE = "_frostline_plan"


@dataclass(frozen=True)
class _Attached:
    plan: TrainabilityPlan
    built_flags: Mapping[str, bool]


def attach_plan(model: nn.Module, plan: TrainabilityPlan, built_flags: Mapping[str, bool]) -> None:
    """Remember `plan` on the (unwrapped) model, with the flags that the model was built with."""
    unwrap(model).__dict__[_ATTRIBUTE] = _Attached(plan, built_flags)


def detach_plan(model: nn.Module) -> None:
    """Forget the plan of `model`, if it has one."""
    unwrap(model).__dict__.pop(_ATTRIBUTE, None)


def plan_of(model: nn.Module) -> TrainabilityPlan:
    """The plan that `prepare`, `plan.apply` or `plan.bind` put into force on `model` last.

    Raises:
        PlanMismatchError: the model has none.
    """
    held = unwrap(model).__dict__.get(_ATTRIBUTE)
    if not isinstance(held, _Attached):
        raise PlanMismatchError(
            "this model has no plan",
            where=type(unwrap(model)).__name__,
            possible="models that frostline.prepare returned",
            fix="call frostline.prepare(model, ...) first",
        )
    return held.plan


def built_flags(model: nn.Module) -> Mapping[str, bool] | None:
    """`requires_grad` by path as the model came, if a plan has changed it since; else None."""
    held = unwrap(model).__dict__.get(_ATTRIBUTE)
    return held.built_flags if isinstance(held, _Attached) else None
