"""What a checkpoint keeps of the plan, to say in words how another plan differs from it.

Knows plans; compares, never resolves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from frostline.checkpoint.json_file import read_json
from frostline.trainability import TrainabilityPlan, diff_phases, fold_differences, phases_to_json, show_rows

PLAN_FILE = "plan.json"


def plan_record(plan: TrainabilityPlan) -> dict[str, Any]:
    """The trained parameters of `plan` with shape and deciding rule, and its digest, as plain values.

    With phases: what any of them trains, what has trained so far, and what each changes.
    """
    trained = {
        path: {
            "shape": list(plan.decisions[path].shape),
            "rule": str(plan.trained_by[path]),
            **({"rows": show_rows(rows)} if (rows := plan.decisions[path].rows) is not None else {}),
        }
        for path in plan.ever_trained
    }
    phases: dict[str, Any] = {}
    if plan.phases:
        so_far = [path for path in plan.ever_trained if plan.has_trained(path)]
        phases = {"so_far": so_far, "phases": phases_to_json(plan.phases)}
    return {"digest": plan.digest, "num_parameters": len(plan.decisions), "trained": trained, **phases}


def trained_so_far(record: dict[str, Any]) -> list[str]:
    """Paths of the parameters that had trained when `record` was made."""
    return list(record.get("so_far", record["trained"]))


def read_plan_record(path: Path) -> dict[str, Any]:
    """Read back what `plan_record` made.

    Raises:
        CheckpointError: missing or damaged.
    """
    return read_json(path, _parse)


def _parse(record: dict[str, Any]) -> dict[str, Any]:
    if not {"digest", "num_parameters"} <= record.keys():
        raise ValueError("it is not a plan")
    for path, entry in record["trained"].items():
        if not {"shape", "rule"} <= entry.keys():
            raise ValueError(f"trained: {path}")
    return record


def differences(saved: dict[str, Any], plan: TrainabilityPlan) -> list[str]:
    """One line for each parameter that trains in only one of the two plans, or has another shape."""
    now = plan_record(plan)["trained"]
    then = saved["trained"]
    lines = [f"trained in the checkpoint, not now: {path} ({then[path]['rule']})" for path in then if path not in now]
    lines += [f"trains now, not in the checkpoint: {path} ({now[path]['rule']})" for path in now if path not in then]
    for path in now:
        if path in then and now[path].get("rows") != then[path].get("rows"):
            lines.append(f"{path}: rows {then[path].get('rows')} in the checkpoint, {now[path].get('rows')} now")
        elif path in then and now[path]["shape"] != then[path]["shape"]:
            lines.append(f"{path}: shape {then[path]['shape']} in the checkpoint, {now[path]['shape']} now")
    phases = diff_phases(saved.get("phases", ()), phases_to_json(plan.phases))
    lines += map(str, fold_differences(phases, plan.decisions))
    return lines or [f"the same parameters train, in a model with other frozen ones ({saved['num_parameters']} before)"]
