"""A plan as JSON-able data: the fields that the guide lists, stable under one `format_version`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from frostline.trainability.decision import Decision
from frostline.trainability.screen.phase_lines import phases_to_json
from frostline.trainability.trained_rows import show_rows

if TYPE_CHECKING:
    from frostline.trainability.plan import TrainabilityPlan


def plan_to_json(plan: TrainabilityPlan) -> dict[str, Any]:
    """See `TrainabilityPlan.to_json`."""
    return {
        "format_version": 1,
        "digest": plan.digest,
        "peft": plan.adapters.label if plan.adapters else None,
        "frozen_mode": plan.frozen_mode,
        "num_trainable": plan.num_trainable,
        "num_total": plan.num_total,
        "notes": list(plan.notes),
        **({"phase": plan.phase, "phases": phases_to_json(plan.phases)} if plan.phases else {}),
        "parameters": {
            entry.path: {
                "trains": entry.trains,
                "rule": str(entry.rule),
                "kind": entry.kind,
                "shape": list(entry.shape),
                "dtype": entry.dtype,
                **_place_of(entry),
                **({"conditional": True} if entry.conditional else {}),
                **({"rows": show_rows(entry.rows)} if entry.rows is not None else {}),
                **({"aliases": list(entry.aliases)} if entry.aliases else {}),
                **({"note": entry.note} if entry.note else {}),
            }
            for entry in plan.decisions.values()
        },
    }


def _place_of(decision: Decision) -> dict[str, Any]:
    """File and line of the rule, where somebody wrote it."""
    origin = decision.rule.origin
    if origin is None:
        return {}
    place = {"file": origin.file, "line": origin.line}
    return {key: value for key, value in place.items() if value is not None}
