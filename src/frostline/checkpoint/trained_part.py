"""The folder `trained/`: the trained part of a run without adapters, or what peft's layout cannot hold.

`model.safetensors` has the model's own parameter names, `trained.json` says which base and plan it belongs to. Knows
nothing of peft, optimizers or run folders.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

import torch

from frostline.checkpoint.atomic import standing, write_file
from frostline.checkpoint.fingerprint import BaseIdentity
from frostline.checkpoint.peft_layout import trained_paths
from frostline.checkpoint.tensor_file import put_tensors, read_tensors, values_of, write_tensors
from frostline.errors import CheckpointError
from frostline.trainability import TrainabilityPlan

WEIGHTS = "model.safetensors"
RECORD = "trained.json"


def save_trained(
    model: torch.nn.Module,
    plan: TrainabilityPlan,
    directory: str | Path,
    base: BaseIdentity | None = None,
    *,
    only: Collection[str] | None = None,
) -> tuple[str, ...]:
    """Write what the plan says has trained, and nothing of the frozen base, into `directory`.

    Args:
        directory: made if it is not there.
        base: which base the trained part belongs to.
        only: canonical paths to restrict it to.

    Returns the canonical paths written.

    Raises:
        CheckpointError: a tensor is empty or not finite, nothing has trained, the disk is full.
    """
    directory = Path(directory)
    paths = [path for path in trained_paths(model, plan) if only is None or path in only]
    values = values_of(model)
    directory.mkdir(parents=True, exist_ok=True)
    write_tensors(directory / WEIGHTS, {path: values[path] for path in paths})
    record = {
        "format_version": 1,
        "base": (base or BaseIdentity()).to_dict(),
        "plan_digest": plan.digest,
        "num_tensors": len(paths),
    }
    write_file(directory / RECORD, json.dumps(record, indent=1) + "\n")
    return tuple(paths)


def load_trained(
    model: torch.nn.Module,
    directory: str | Path,
    *,
    plan: TrainabilityPlan | None = None,
    base: BaseIdentity | None = None,
    elsewhere: Collection[str] = (),
    allow_plan_change: bool = False,
) -> tuple[str, ...]:
    """Put a trained part into `model`, all or none, and return the canonical paths that were loaded.

    Args:
        plan: the file must hold exactly what this plan trains.
        base: identity of the base in `model`; another one is refused.
        elsewhere: paths that another file holds.
        allow_plan_change: load what is there even if the plan trains something else.

    Raises:
        CheckpointError: a file is missing, damaged or a pickle; another base; names every tensor that is missing,
            unexpected, of another shape or not finite.
    """
    directory = standing(Path(directory))
    tensors = read_tensors(directory / WEIGHTS)
    record = _read_record(directory / RECORD)
    if base is not None:
        BaseIdentity.from_dict(record["base"]).check_same(base, where=directory)
    if record["num_tensors"] != len(tensors):
        raise CheckpointError(
            f"{WEIGHTS} holds {len(tensors)} tensors, {RECORD} says {record['num_tensors']}",
            where=directory,
            possible="the files of one and the same save",
            fix="use another checkpoint",
        )
    if plan is not None and not allow_plan_change:
        wanted = set(trained_paths(model, plan)) - set(elsewhere)
        faults = [f"missing {path}" for path in sorted(wanted - set(tensors))]
        faults += [f"unexpected {path}" for path in sorted(set(tensors) - wanted)]
        if faults:
            rest = f", and {len(faults) - 8} more" if len(faults) > 8 else ""
            raise CheckpointError(
                "the trained part does not fit the plan: " + ", ".join(faults[:8]) + rest,
                where=directory / WEIGHTS,
                possible="exactly the parameters that the plan trains",
                fix="use the freeze_config that it was trained with",
            )
    put_tensors(model, tensors, where=directory / WEIGHTS)
    return tuple(tensors)


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record = cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8")))
        BaseIdentity.from_dict(record["base"])
        return {"num_tensors": record["num_tensors"], "base": record["base"]}
    except FileNotFoundError:
        raise CheckpointError(
            f"{path.name} is missing",
            where=path.parent,
            fix="check the folder",
            possible=f"a folder with {WEIGHTS} and {RECORD}",
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path.name} is damaged: {error}",
            where=path,
            possible="JSON as the run wrote it",
            fix="use another checkpoint",
        ) from None
