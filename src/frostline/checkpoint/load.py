"""Reads one checkpoint back into a model and, to resume, into an optimizer and the random generators.

Everything is read and checked before anything is changed, the files' hashes first. Knows nothing of the loop that
calls it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from frostline.adapters import adapters_of, differences_of, parse_method
from frostline.checkpoint.adapter_file import match_adapter, read_adapter
from frostline.checkpoint.fingerprint import BaseIdentity
from frostline.checkpoint.json_file import read_json
from frostline.checkpoint.manifest import FILE_NAME as MANIFEST
from frostline.checkpoint.manifest import Manifest
from frostline.checkpoint.optimizer_state import read_optimizer
from frostline.checkpoint.peft_layout import trained_paths
from frostline.checkpoint.plan_record import PLAN_FILE, differences, read_plan_record
from frostline.checkpoint.random_state import read_random_state
from frostline.checkpoint.save import PROGRESS
from frostline.checkpoint.tensor_file import put_tensors
from frostline.checkpoint.trained_part import match_trained, read_trained
from frostline.errors import CheckpointError, ConfigError
from frostline.trainability import TrainabilityPlan


@dataclass(frozen=True)
class LoadedState:
    """What a checkpoint says beside the tensors.

    Attributes:
        step: optimizer steps done.
        progress, scheduler_state: as given to `save_checkpoint`.
        manifest: the whole manifest.
        plan_changes: differences of the plans, where a change was allowed.
    """

    step: int
    progress: dict[str, Any]
    scheduler_state: dict[str, Any]
    manifest: Manifest
    plan_changes: tuple[str, ...] = ()


def load_checkpoint(
    path: str | Path,
    *,
    model: torch.nn.Module,
    plan: TrainabilityPlan,
    optimizer: torch.optim.Optimizer | None = None,
    base: BaseIdentity,
    allow_plan_change: bool = False,
) -> LoadedState:
    """Load the checkpoint folder `path` into `model`, which has its base weights and its adapters.

    Args:
        plan: the plan in force, which must be the one that the checkpoint was trained with, in the phase of its last
            step (`Manifest.read(path).phase`).
        optimizer: to resume: gets its state back, and the random generators get theirs. None to evaluate.
        base: identity of the base in `model`.
        allow_plan_change: load what fits where the plan differs.

    Raises:
        CheckpointError: a file is missing, truncated, edited or a pickle; another base; another plan (the message
            prints the difference); a tensor or an optimizer state that does not fit.
    """
    path = Path(path)
    manifest = Manifest.read(path)
    manifest.base.check_same(base, where=path)
    changes = _plan_changes(path, manifest, plan)
    if changes and not allow_plan_change:
        shown = "\n".join(changes[:12]) + (f"\n... and {len(changes) - 12} more" if len(changes) > 12 else "")
        raise CheckpointError(
            f"the checkpoint was trained with another plan (digest {manifest.plan_digest[:8]}, now {plan.digest[:8]})",
            where=path,
            possible=shown,
            fix="use the config that it was trained with"
            + (", or give --allow-plan-change to load what fits" if optimizer is not None else ""),
        )
    if not changes:
        _require_same_phase(path, manifest, plan)
    _require_same_method(path, manifest, model)
    manifest.verify_files(path, ("",) if optimizer is not None else ("adapter/", "trained/"))
    tensors = _match_trained_part(path, model, plan, allow_plan_change)
    changes_of_state: list[Callable[[], None]] = []
    if optimizer is not None:
        changes_of_state = [
            read_optimizer(
                optimizer,
                model,
                path / "state",
                without_state=manifest.without_state,
                allow_plan_change=allow_plan_change,
            ),
            read_random_state(path / "state"),
        ]
    progress, scheduler = read_json(
        path / "state" / PROGRESS, lambda state: (_mapping(state["progress"]), _mapping(state["scheduler"]))
    )
    put_tensors(model, tensors)
    for change in changes_of_state:
        change()
    return LoadedState(manifest.step, progress, scheduler, manifest, tuple(changes))


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is no mapping")
    return cast("dict[str, Any]", value)


def _plan_changes(path: Path, manifest: Manifest, plan: TrainabilityPlan) -> list[str]:
    if manifest.plan_digest == plan.digest:
        return []
    return differences(read_plan_record(path / PLAN_FILE), plan)


def _require_same_phase(path: Path, manifest: Manifest, plan: TrainabilityPlan) -> None:
    if manifest.phase != plan.phase:
        raise CheckpointError(
            f"the checkpoint was written in phase {manifest.phase} of the plan, and phase {plan.phase} is in force",
            where=path / MANIFEST,
            possible="the phase of the last step that the checkpoint holds",
            fix=f"call model, plan = frostline.enter_phase(model, plan, {manifest.phase}) first",
        )


def _require_same_method(path: Path, manifest: Manifest, model: torch.nn.Module) -> None:
    """The plan's digest holds shapes, not scaling: an adapter with another alpha would load and compute otherwise."""
    adapters = adapters_of(model)
    if manifest.method is None or not adapters:
        return  # one side has no adapter: the trained part will say so
    now = adapters.get(manifest.adapter or "", next(iter(adapters.values()))).method
    try:
        then = parse_method(manifest.method)
    except ConfigError as error:
        raise CheckpointError(
            f"the method of the checkpoint cannot be read: {error.problems[0].what}",
            where=path / MANIFEST,
            possible=error.problems[0].possible or "a method that is installed",
            fix="install what the run was trained with, or use another checkpoint",
        ) from None
    differing = [f"{key}: {saved} in the checkpoint, {held} now" for key, saved, held in differences_of(then, now)]
    if differing:
        raise CheckpointError(
            f"the adapter of the checkpoint computes with other settings: {', '.join(differing)}",
            where=path,
            possible="the peft block that the run was trained with",
            fix="restore these values",
        )


def _match_trained_part(
    path: Path, model: torch.nn.Module, plan: TrainabilityPlan, allow_plan_change: bool
) -> dict[str, Tensor]:
    """What `adapter/` and `trained/` hold, by canonical path of `model`, after it was found to fit."""
    has_adapter, has_trained = (path / "adapter").is_dir(), (path / "trained").is_dir()
    if has_adapter != bool(adapters_of(model)):
        raise CheckpointError(
            "the checkpoint holds an adapter, the model has none"
            if has_adapter
            else "the model has an adapter, the checkpoint holds none",
            where=path,
            fix="use the peft block of the run's config",
            possible="a model with adapters exactly where the run had them",
        )
    if not has_adapter:
        return match_trained(model, read_trained(path / "trained"), plan=plan, allow_plan_change=allow_plan_change)
    beside = read_trained(path / "trained") if has_trained else None
    paths = frozenset(beside.tensors) if beside is not None else frozenset[str]()
    file = read_adapter(path / "adapter")
    tensors = match_adapter(model, plan, file, elsewhere=paths, allow_plan_change=allow_plan_change)
    if beside is not None:
        inside = set(trained_paths(model, plan)) - paths
        tensors |= match_trained(model, beside, plan=plan, elsewhere=inside, allow_plan_change=allow_plan_change)
    return tensors
