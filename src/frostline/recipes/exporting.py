"""Turns a checkpoint into what other tools load: an adapter folder for peft, or a merged model for transformers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any, Literal

import torch

from frostline.adapters import adapters_of, merge
from frostline.checkpoint import read_adapter
from frostline.checkpoint.atomic import disk_errors, publishing
from frostline.checkpoint.peft_layout import OTHERWISE
from frostline.errors import CheckpointError, ConfigError
from frostline.integrations.hf_models.startup import quiet_transformers
from frostline.recipes.finished import FinishedRun
from frostline.trainability import TrainabilityPlan
from frostline.training.precision import HALVES
from frostline.tree import canonical_named_parameters

Say = Callable[[str], None]


def export_run(
    run: FinishedRun, target: Literal["peft", "merged"], directory: str | Path, *, say: Say = lambda line: None
) -> Path:
    """Write `run` into the new folder `directory`, in one step: it appears whole or not at all.

    Args:
        target: `peft` copies the adapter with its tokenizer; `merged` writes a full model that `transformers` loads.

    Raises:
        CheckpointError: the folder exists, the checkpoint is damaged, or holds what peft cannot express.
    """
    directory = Path(directory)
    with disk_errors(directory):  # such as a name that is too long
        directory = directory.resolve()  # a link leads to the folder that is meant; `.` gets a name
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise CheckpointError(
            f"{directory} exists already",
            where=directory,
            possible="a folder that is not there or is empty",
            fix="choose another folder",
        )
    run.manifest.verify_files(run.checkpoint, ("adapter/", "trained/"))
    write = {"peft": _write_peft, "merged": _write_merged}[target]
    with publishing(directory) as aside:
        write(run, aside, say)
    return directory


def _write_peft(run: FinishedRun, aside: Path, say: Say) -> None:
    del say
    source = run.checkpoint / "adapter"
    if not source.is_dir():
        raise CheckpointError(
            f"the run in {run.folder.path} has no adapter: it trained parameters of the base",
            where=run.checkpoint,
            possible="--to merged writes a full model",
            fix="export with --to merged",
        )
    if (run.checkpoint / "trained").is_dir():
        raise CheckpointError(
            "peft cannot express everything that this run trained",
            where=run.checkpoint / "trained",
            possible="\n".join(run.manifest.notes) or "see manifest.json",
            fix="export with --to merged",
        )
    otherwise = [note for note in run.manifest.notes if note.startswith(OTHERWISE)]
    if otherwise:
        raise CheckpointError(
            otherwise[0],
            where=run.checkpoint,
            possible="models in which every adapted module has one name",
            fix="export with --to merged",
        )
    read_adapter(source)  # whole, and in peft's layout
    shutil.copytree(source, aside, dirs_exist_ok=True)


def _write_merged(run: FinishedRun, aside: Path, say: Say) -> None:
    assembly = run.assemble(with_data=False, say=say)
    model, plan = run.load_model(assembly, torch.device("cpu"))
    _widen(run, model, plan, say)
    if adapters_of(model):
        merge(model)
    saving: Any = model
    if not hasattr(saving, "save_pretrained"):
        raise ConfigError(
            f"{type(model).__name__} cannot be written as a transformers model",
            where=run.folder.path,
            possible="models of transformers",
            fix="save its state dict yourself",
        )
    with quiet_transformers():
        saving.save_pretrained(aside)
    assembly.tokenizer.save_pretrained(aside)


def _widen(run: FinishedRun, model: torch.nn.Module, plan: TrainabilityPlan, say: Say) -> None:
    """Bring the whole model to one dtype that holds what trained in full, where that differs from the base's.

    Loaders give a model one dtype, so the base's would round what was trained. Adapters alone change nothing: they are
    merged into the weights of the base, which keep their dtype.
    """
    params = dict(canonical_named_parameters(model))
    base: torch.dtype = getattr(torch, str(run.manifest.base.dtype))
    in_full = {params[path].dtype for path in plan.ever_trained if plan.decisions[path].kind != "adapter"}
    if in_full - {base}:
        widest = reduce(torch.promote_types, in_full, base)
        model.to(widest)
        trained = ", ".join(sorted(_name(dtype) for dtype in in_full))
        say(f"written in {_name(widest)}: the base is {_name(base)}, and its trained parameters are {trained}")
    elif adapters_of(model) and base in HALVES:
        say(f"written in {_name(base)} as the base: each sum of a weight and its adapter is rounded to that")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
