"""The folder `trained/`: the trained part of a run without adapters, or what peft's layout cannot hold.

`model.safetensors` has the model's own parameter names, `trained.json` says which base and plan it belongs to. Knows
nothing of peft, optimizers or run folders.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from frostline.checkpoint.atomic import standing, write_file
from frostline.checkpoint.fingerprint import BaseIdentity
from frostline.checkpoint.json_file import read_json
from frostline.checkpoint.peft_layout import planned_empty, require_no_extra_state, trained_paths
from frostline.checkpoint.tensor_file import read_tensors, require_fit, values_of, write_tensors
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
        CheckpointError: a tensor is empty or not finite, nothing has trained, a trained module has state of its own
            (`get_extra_state`), the disk is full.
    """
    directory = Path(directory)
    require_no_extra_state(model, plan)
    paths = [path for path in trained_paths(model, plan) if only is None or path in only]
    values = values_of(model)
    directory.mkdir(parents=True, exist_ok=True)
    write_tensors(directory / WEIGHTS, {path: values[path] for path in paths}, may_be_empty=planned_empty(plan))
    record = {
        "format_version": 1,
        "base": (base or BaseIdentity()).to_dict(),
        "plan_digest": plan.digest,
        "num_tensors": len(paths),
    }
    write_file(directory / RECORD, json.dumps(record, indent=1) + "\n")
    return tuple(paths)


@dataclass(frozen=True)
class TrainedFile:
    """A folder written by `save_trained`, as read.

    Attributes:
        directory: where it lies.
        tensors: by canonical path, on the CPU.
        base: base that it belongs to.
    """

    directory: Path
    tensors: Mapping[str, Tensor]
    base: BaseIdentity


def read_trained(directory: str | Path) -> TrainedFile:
    """Read a folder that `save_trained` wrote.

    Raises:
        CheckpointError: a file is missing, damaged or a pickle.
    """
    directory = standing(Path(directory))
    tensors = read_tensors(directory / WEIGHTS)
    base, num_tensors = read_json(directory / RECORD, _parse_record)
    if num_tensors != len(tensors):
        raise CheckpointError(
            f"{WEIGHTS} holds {len(tensors)} tensors, {RECORD} says {num_tensors}",
            where=directory,
            possible="the files of one and the same save",
            fix="use another checkpoint",
        )
    return TrainedFile(directory, tensors, base)


def match_trained(
    model: torch.nn.Module,
    file: TrainedFile,
    *,
    plan: TrainabilityPlan | None = None,
    elsewhere: Collection[str] = (),
    allow_plan_change: bool = False,
) -> dict[str, Tensor]:
    """The tensors of `file`, by canonical path of `model`, after they were found to fit. Changes nothing.

    Args:
        plan: the file must hold exactly what this plan trains.
        elsewhere: paths that another file holds.
        allow_plan_change: take what is there even if the plan trains something else.

    Raises:
        CheckpointError: names every tensor that is missing, unexpected, of another shape or not finite.
    """
    if plan is not None and not allow_plan_change:
        wanted = set(trained_paths(model, plan)) - set(elsewhere)
        faults = [f"missing {path}" for path in sorted(wanted - set(file.tensors))]
        faults += [f"unexpected {path}" for path in sorted(set(file.tensors) - wanted)]
        if faults:
            rest = f", and {len(faults) - 8} more" if len(faults) > 8 else ""
            raise CheckpointError(
                "the trained part does not fit the plan: " + ", ".join(faults[:8]) + rest,
                where=file.directory / WEIGHTS,
                possible="exactly the parameters that the plan trains",
                fix=_other_phase(model, file, plan, elsewhere) or "use the freeze_config that it was trained with",
            )
    require_fit(model, file.tensors, where=file.directory / WEIGHTS)
    return dict(file.tensors)


def _other_phase(model: torch.nn.Module, file: TrainedFile, plan: TrainabilityPlan, elsewhere: Collection[str]) -> str:
    """What to do if the file was written in another phase of the same plan; empty if it fits none."""
    for index in range(len(plan.phases) + 1):
        if set(trained_paths(model, plan.in_phase(index))) - set(elsewhere) == set(file.tensors):
            return f"call model, plan = frostline.enter_phase(model, plan, {index}) first"
    return ""


def _parse_record(record: dict[str, Any]) -> tuple[BaseIdentity, int]:
    return BaseIdentity.from_dict(record["base"]), record["num_tensors"]
