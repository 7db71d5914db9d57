"""Writes one checkpoint, so that a kill at any moment leaves the newest complete one loadable.

The order is all: aside, fsync, verify, rename, links, prune. Knows nothing of the loop that calls it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from frostline.adapters import adapters_of
from frostline.checkpoint.adapter_file import write_adapter
from frostline.checkpoint.atomic import disk_errors, publish_directory, write_file
from frostline.checkpoint.fingerprint import BaseIdentity
from frostline.checkpoint.manifest import Manifest, describe_files
from frostline.checkpoint.optimizer_state import save_optimizer
from frostline.checkpoint.plan_record import PLAN_FILE, plan_record
from frostline.checkpoint.random_state import save_random_state
from frostline.checkpoint.run_folder import RunFolder
from frostline.checkpoint.trained_part import save_trained
from frostline.errors import CheckpointError
from frostline.trainability import TrainabilityPlan

PROGRESS = "progress.json"


def save_checkpoint(
    run: RunFolder,
    *,
    model: torch.nn.Module,
    plan: TrainabilityPlan,
    optimizer: torch.optim.Optimizer,
    scheduler_state: dict[str, Any],
    progress: dict[str, Any],
    base: BaseIdentity,
    task_type: str | None = None,
    extra_files: Callable[[Path], None] | None = None,
    is_best: bool = False,
    keep: int = 2,
) -> Path:
    """Write the checkpoint of optimizer step `progress["step"]` and return its folder.

    Args:
        run: open for writing.
        plan: the plan in force, in the phase of the last step done.
        scheduler_state, progress: plain values for JSON; `progress` has `step` (optimizer steps done), may have
            `epoch`.
        base: which base the run started from.
        task_type: peft's task type.
        extra_files: called with the folder of the trained part, to put a tokenizer beside it.
        is_best: whether `best` shall lead here.
        keep: number of newest checkpoints to keep; the best one is kept besides.

    Raises:
        CheckpointError: the disk is full or a tensor is not finite. Earlier checkpoints are whole, and nothing half
            written stays behind.
    """
    step = int(progress["step"])
    if not run.writable:
        raise CheckpointError(
            f"the run folder {run.path} is open for reading only",
            where=run.path,
            possible="a folder from RunFolder.open",
            fix="open it for writing",
        )
    final = run.checkpoint_dir(step)
    aside = run.checkpoint_root / f".tmp-{final.name}-{os.getpid()}"
    with disk_errors(final):
        try:
            _clear(aside)
            (aside / "state").mkdir(parents=True)
            main, notes = _write_trained_part(aside, model, plan, base, task_type)
            if extra_files is not None:
                extra_files(main)
            without_state = save_optimizer(optimizer, model, aside / "state")
            save_random_state(aside / "state")
            state = {"progress": progress, "scheduler": scheduler_state}
            write_file(aside / "state" / PROGRESS, json.dumps(state) + "\n")
            write_file(aside / PLAN_FILE, json.dumps(plan_record(plan), indent=1) + "\n")
            adapter, method = _describe_adapter(model)
            Manifest(
                step=step,
                epoch=progress.get("epoch"),
                base=base,
                plan_digest=plan.digest,
                phase=plan.phase,
                is_best=is_best,
                adapter=adapter,
                method=method,
                task_type=task_type,
                files=describe_files(aside),
                without_state=without_state,
                notes=notes,
            ).write(aside)
            publish_directory(aside, final)
        except BaseException:
            _clear(aside)
            raise
        run.set_latest(final)
        if is_best:
            run.set_best(final)
        run.link_trained_part()
        run.prune(keep)
    return final


def _write_trained_part(
    aside: Path, model: torch.nn.Module, plan: TrainabilityPlan, base: BaseIdentity, task_type: str | None
) -> tuple[Path, tuple[str, ...]]:
    """Write `adapter/`, `trained/` or both, and return the main one and what a reader should know."""
    if not adapters_of(model):
        save_trained(model, plan, aside / "trained", base)
        return aside / "trained", ()
    layout = write_adapter(model, plan, aside / "adapter", base, task_type=task_type)
    notes = layout.notes
    if layout.inexpressible:
        save_trained(model, plan, aside / "trained", base, only=layout.inexpressible)
        notes += tuple(f"in trained/, not in adapter/: {path}: {why}" for path, why in layout.inexpressible.items())
    return aside / "adapter", notes


def _describe_adapter(model: torch.nn.Module) -> tuple[str | None, dict[str, Any] | None]:
    for name, adapter in adapters_of(model).items():
        return name, dict(adapter.method.to_config())
    return None, None


def _clear(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
