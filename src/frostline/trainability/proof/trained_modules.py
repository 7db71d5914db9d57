"""Which module a trained tensor counts for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from frostline.trainability.plan import TrainabilityPlan


def module_of(path: str, plan: TrainabilityPlan) -> str:
    """The owner of a tensor, or the adapted module of an adapter tensor."""
    owner = path.rpartition(".")[0]
    if plan.decisions[path].kind == "adapter" and plan.adapters is not None:
        while owner and owner not in plan.adapters.rules:
            owner = owner.rpartition(".")[0]
    return owner or path


def group_by_module(paths: Iterable[str], plan: TrainabilityPlan) -> dict[str, list[str]]:
    """Module -> those of `paths` that count for it."""
    modules: dict[str, list[str]] = {}
    for path in paths:
        modules.setdefault(module_of(path, plan), []).append(path)
    return modules
