"""Reads one checkpoint back into a model and, to resume, into an optimizer and the random generators.

Everything is checked before anything is changed, the files' hashes first. Knows nothing of the loop that calls it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from frostline.adapters import adapters_of
from frostline.checkpoint.adapter_file import load_adapter_tensors, read_adapter
from frostline.checkpoint.fingerprint import BaseIdentity
from frostline.checkpoint.manifest import Manifest
from frostline.checkpoint.optimizer_state import load_optimizer, load_random_state
from frostline.checkpoint.peft_layout import trained_paths
from frostline.checkpoint.plan_record import PLAN_FILE, differences, read_plan_record
from frostline.checkpoint.save import PROGRESS
from frostline.checkpoint.tensor_file import read_tensors
from frostline.checkpoint.trained_part import WEIGHTS as TRAINED_WEIGHTS
from frostline.checkpoint.trained_part import load_trained
from frostline.errors import CheckpointError
from frostline.trainability import TrainabilityPlan

# Of a method's config: where it was injected is in the plan, how it was drawn does not matter any more.
_FREE_KEYS = frozenset({"target_modules", "exclude_modules", "seed", "dtype"})


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
        plan: the plan in force, which must be the one that the checkpoint was trained with.
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
            fix="use the config of the run, or give --allow-plan-change to load what fits",
        )
    _require_same_method(path, manifest, model)
    manifest.verify_files(path, ("",) if optimizer is not None else ("adapter/", "trained/"))
    _load_trained_part(path, model, plan, allow_plan_change)
    if optimizer is not None:
        load_optimizer(
            optimizer,
            model,
            path / "state",
            without_state=manifest.without_state,
            allow_plan_change=allow_plan_change,
        )
        load_random_state(path / "state")
    try:
        state = cast("dict[str, Any]", json.loads((path / "state" / PROGRESS).read_text(encoding="utf-8")))
        return LoadedState(manifest.step, state["progress"], state["scheduler"], manifest, tuple(changes))
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{PROGRESS} cannot be read: {error}",
            where=path / "state",
            possible="JSON as the run wrote it",
            fix="use another checkpoint of the run",
        ) from None


def _plan_changes(path: Path, manifest: Manifest, plan: TrainabilityPlan) -> list[str]:
    if manifest.plan_digest == plan.digest:
        return []
    return differences(read_plan_record(path / PLAN_FILE), plan)


def _require_same_method(path: Path, manifest: Manifest, model: torch.nn.Module) -> None:
    """The plan's digest holds shapes, not scaling: an adapter with another alpha would load and compute otherwise."""
    adapters = adapters_of(model)
    if manifest.method is None or not adapters:
        return  # one side has no adapter: the trained part will say so
    now = adapters.get(manifest.adapter or "", next(iter(adapters.values()))).method.to_config()
    differing = [
        f"{key}: {then} in the checkpoint, {now.get(key)} now"
        for key, then in manifest.method.items()
        if key not in _FREE_KEYS and now.get(key) != then
    ]
    if differing:
        raise CheckpointError(
            f"the adapter of the checkpoint computes with other settings: {', '.join(differing)}",
            where=path,
            possible="the peft block that the run was trained with",
            fix="restore these values",
        )


def _load_trained_part(path: Path, model: torch.nn.Module, plan: TrainabilityPlan, allow_plan_change: bool) -> None:
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
    if has_adapter:
        beside = frozenset(read_tensors(path / "trained" / TRAINED_WEIGHTS)) if has_trained else frozenset[str]()
        file = read_adapter(path / "adapter")
        load_adapter_tensors(model, plan, file, elsewhere=beside, allow_plan_change=allow_plan_change)
        if has_trained:
            inside = set(trained_paths(model, plan)) - beside
            load_trained(model, path / "trained", plan=plan, elsewhere=inside, allow_plan_change=allow_plan_change)
    else:
        load_trained(model, path / "trained", plan=plan, allow_plan_change=allow_plan_change)
