"""`save_adapter`, `load_adapter`, `save_trained`, `load_trained`: the trained part of a model, as a folder to share.

For use without a run folder. Where adapters, plans and files meet; the formats live in `frostline.checkpoint`.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from frostline.adapters import InjectedAdapter, LoRA, adapters_of, remove_adapters, remove_rows, rows_of
from frostline.adapters.base import DEFAULT_NAME
from frostline.checkpoint import (
    AdapterFile,
    BaseIdentity,
    read_adapter,
    write_adapter,
)
from frostline.checkpoint import save_trained as write_trained
from frostline.checkpoint.adapter_file import match_adapter
from frostline.checkpoint.atomic import publishing, standing
from frostline.checkpoint.base_in_memory import identity_of, identity_to_save, require_same_base
from frostline.checkpoint.foreign_adapter import require_tied_as_in, without_base_copies
from frostline.checkpoint.peft_layout import only_adapter
from frostline.checkpoint.tensor_file import put_tensors, values_of
from frostline.checkpoint.trained_part import TrainedFile, match_trained, read_trained
from frostline.checkpoint.whole import require_whole_to_load, require_whole_to_save
from frostline.errors import AdapterError, CheckpointError, PlanMismatchError
from frostline.preparation import prepare, release
from frostline.trainability import TrainabilityPlan, plan_of, show_rows
from frostline.tree import canonical_named_parameters, join_path, set_trainable

ModelT = TypeVar("ModelT", bound=nn.Module)

# peft's initializations that take the adapter's first values out of the base weights; without that the file is wrong.
_CHANGE_THE_BASE = ("pissa", "olora", "corda", "loftq")

_ADAPTER, _TRAINED = "adapter_config.json", "trained.json"  # the file that tells what a folder holds


def save_adapter(
    model: nn.Module,
    directory: str | Path,
    *,
    adapter: str | None = None,
    task_type: str | None = None,
    base: BaseIdentity | None = None,
) -> Path:
    """Write the whole trained part of `model` into `directory` in the layout of Hugging Face peft.

    Args:
        model: from `prepare`; wrappers such as DDP or compile do not matter.
        directory: must not exist, or hold an earlier adapter, which is replaced once the new one is whole. A kill at
            any moment leaves one of the two for `load_adapter`. No link, and not the current folder or one above it.
        adapter: name of the adapter, needed where the model has several.
        task_type: peft's task type, such as `SEQ_CLS` or `CAUSAL_LM`.
        base: identity of the base; by default its files, where the model tells the folder that it was loaded from, or
            else the values of all that stayed frozen.

    Raises:
        CheckpointError: no adapter, sharded parameters, a value that is not finite, a trained module with
            `get_extra_state`, a foreign folder in the way, the disk is full.
        AdapterError: something trained that peft's layout cannot hold.
    """
    plan = plan_of(model)
    require_whole_to_save(model, "save_adapter")

    def write(folder: Path) -> None:
        layout = write_adapter(
            model, plan, folder, base or identity_to_save(model, plan), adapter=adapter, task_type=task_type
        )
        if layout.inexpressible:
            path, reason = next(iter(layout.inexpressible.items()))
            raise AdapterError(
                f"{len(layout.inexpressible)} trained tensors have no place in peft's layout, {path} among them",
                where=directory,
                possible=reason,
                fix="freeze them, or save the run as a checkpoint, which keeps them beside the adapter",
            )

    return _publish(Path(directory), write, mark=_ADAPTER)


def load_adapter(
    model: ModelT,
    directory: str | Path,
    *,
    trainable: bool = False,
    adapter: str | None = None,
    base: BaseIdentity | None = None,
) -> tuple[ModelT, TrainabilityPlan]:
    """Put the trained part in `directory` (written by Frostline or by peft) into `model`. Mutates and returns it.

    A bare model gets the adapters injected exactly where the file has them. Nothing is changed if the file does not
    fit: every tensor of it must find its place, and every adapter its tensor.

    Args:
        model: the base, or a model prepared with the same adapter.
        trainable: False: for inference, nothing trains afterwards (call `plan.apply(model)` to go on training).
        adapter: name that the adapter gets in a bare model (None: `default`), or of the one to fill in a prepared one
            (None: the only one).
        base: identity of the base in `model`; by default told by what the file knows its base by. Where that cannot be
            compared (files, and the model names no folder; values in another dtype) a warning says so.

    Returns:
        The model and the plan with which the adapter trains.

    Raises:
        CheckpointError: missing, damaged or pickled files; another base; tensors that are missing, unexpected, of
            another shape or not finite.
        AdapterError, SelectorError: the model has no such modules, or its adapter computes with other settings than
            the one in the file; peft has trained a copy of a tensor that is tied in the model.
    """
    require_whole_to_load(model, "load_adapter")
    _refuse_kind(directory, _TRAINED, "load_adapter", "load_trained")
    file = without_base_copies(model, read_adapter(directory))
    require_tied_as_in(model, file)
    is_bare, had_rows = not adapters_of(model), bool(rows_of(model))
    if is_bare:
        _require_places(model, file)
        _, plan = prepare(
            model,
            peft=_method_of(file),
            freeze_config={"unfreeze_modules": [*_thawed(model, file), *_rows(file)]},
            adapter=adapter or DEFAULT_NAME,
        )
    else:
        plan = plan_of(model)
        _require_same_scaling(only_adapter(model, adapter), file)
    try:
        tensors = match_adapter(model, plan, file, adapter=adapter)
        require_same_base(model, file.base, held=file.trained_in_full, given=base, where=file.directory)
        put_tensors(model, tensors)
    except BaseException:  # a warning that the caller has made an error, too
        if is_bare:
            remove_adapters(model)
            if not had_rows:
                remove_rows(model)
            release(model)
        raise
    if trainable:
        plan.apply(model)
    else:
        for _, param in canonical_named_parameters(model):
            set_trainable(param, False)
    return model, plan


def save_trained(model: nn.Module, directory: str | Path, *, base: BaseIdentity | None = None) -> Path:
    """Write what the plan of `model` has trained, and nothing else, into `directory` (names as in its state dict).

    For models without adapters; with adapters use `save_adapter`. Raises as `save_adapter`.
    """
    plan = plan_of(model)
    require_whole_to_save(model, "save_trained")
    return _publish(
        Path(directory),
        lambda folder: write_trained(model, plan, folder, base or identity_to_save(model, plan)),
        mark=_TRAINED,
    )


def load_trained(model: ModelT, directory: str | Path, *, base: BaseIdentity | None = None) -> ModelT:
    """Put the trained part in `directory` into `model`, all or none. Mutates and returns it; no flag changes.

    A model with a plan must be one that trains exactly these tensors; in one without, trained rows go into their table.

    Raises:
        CheckpointError: as `load_adapter`.
    """
    require_whole_to_load(model, "load_trained")
    _refuse_kind(directory, _ADAPTER, "load_trained", "load_adapter")
    try:
        plan = plan_of(model)
    except PlanMismatchError:  # never prepared
        plan = None
    file = read_trained(directory)
    fitting = _with_rows(model, file) if plan is None and not rows_of(model) else file
    tensors = match_trained(model, fitting, plan=plan)
    require_same_base(model, file.base, held=file.tensors, given=base, where=file.directory)
    put_tensors(model, tensors)
    return model


def _method_of(file: AdapterFile) -> LoRA:
    config = file.config
    unsupported = {key: config.get(key) for key in ("use_dora", "rank_pattern", "alpha_pattern") if config.get(key)}
    if config.get("bias", "none") != "none":
        unsupported["bias"] = config["bias"]
    initialized = config.get("init_lora_weights")
    if isinstance(initialized, str) and initialized.startswith(_CHANGE_THE_BASE):
        unsupported["init_lora_weights"] = initialized
    if unsupported:
        raise AdapterError(
            f"the adapter uses what is not supported yet: {unsupported}",
            where=file.directory / "adapter_config.json",
            possible="plain LoRA on linears, with modules_to_save",
            fix="load it with peft",
        )
    dtypes = {str(value.dtype).removeprefix("torch.") for key, value in file.tensors.items() if ".lora_A" in key}
    return LoRA(
        rank=config["r"],
        alpha=config["lora_alpha"],
        dropout=config.get("lora_dropout", 0.0),
        use_rslora=bool(config.get("use_rslora", False)),
        target_modules=[{"path": path} for path in file.targets],
        dtype=dtypes.pop() if len(dtypes) == 1 else "auto",
    )


def _require_same_scaling(injected: InjectedAdapter, file: AdapterFile) -> None:
    """Every tensor may fit and the output still differ: alpha and rslora leave no trace in a shape."""
    saved, method = _method_of(file), injected.method
    if isinstance(method, LoRA) and saved.rank == method.rank and saved.scaling != method.scaling:
        raise AdapterError(
            f"the adapter in the file is scaled by {saved.scaling:g}, the one in the model by {method.scaling:g}",
            where=file.directory / "adapter_config.json",
            possible=f"alpha {saved.alpha} with use_rslora {saved.use_rslora}, as the file says",
            fix="prepare the model with these, or load into a bare model",
        )


def _require_places(model: nn.Module, file: AdapterFile) -> None:
    """A clear word for a file of another model, before its targets are looked for one by one."""
    modules = {path.rpartition(".")[0] for path, _ in canonical_named_parameters(model)}
    found = [path for path in file.targets if path in modules]
    if file.targets and not found:
        raise CheckpointError(
            f"none of the {len(file.targets)} modules that the adapter is for is in this model",
            where=file.directory,
            possible=f"the adapter is for {', '.join(file.targets[:3])}; "
            f"the model has {', '.join(sorted(modules - {''})[:3])}",
            fix="load the base that the adapter was trained on, with the same model class",
        )


def _thawed(model: nn.Module, file: AdapterFile) -> list[dict[str, Any]]:
    names = {path for path, _ in canonical_named_parameters(model)}
    return [{"param": glob.escape(path)} for path in file.trained_in_full if path in names]


def _rows(file: AdapterFile) -> list[dict[str, Any]]:
    return [{"param": glob.escape(join_path(path, "weight")), "rows": list(rows)} for path, rows in file.rows.items()]


def _with_rows(model: nn.Module, file: TrainedFile) -> TrainedFile:
    """`file` for a bare model: instead of trained rows the table with these rows in it.

    Raises:
        CheckpointError: the model has no such table, or none with such rows.
    """
    values = values_of(model)
    tensors = dict(file.tensors)
    for path, rows in file.rows.items():
        name = join_path(path.rpartition(".")[0], "weight")
        table, stored = values.get(name), tensors.pop(path)
        if table is None or table.dim() != 2 or table.shape[1:] != stored.shape[1:] or max(rows) >= len(table):
            raise CheckpointError(
                f"the file holds rows {show_rows(rows)} of {name}, of width {stored.shape[-1]}",
                where=file.directory,
                possible=f"{name} has shape {list(table.shape)}" if table is not None else f"the model has no {name}",
                fix="load it into the model that it was trained on",
            )
        index = torch.tensor(rows, device=table.device)
        tensors[name] = table.index_copy(0, index, stored.to(table.dtype).to(table.device))
    return replace(file, tensors=tensors, rows={})


def _refuse_kind(directory: str | Path, mark: str, called: str, right: str) -> None:
    """A folder of the other kind was given: say so by the name of the function that reads it."""
    folder = standing(Path(directory))
    if (folder / mark).is_file() and not all((folder / name).is_file() for name in (_ADAPTER, _TRAINED)):
        raise CheckpointError(
            f"{directory} was written by {right.replace('load', 'save')}, which {called} does not read",
            where=folder / mark,
            possible=f"a folder that {called.replace('load', 'save')} wrote",
            fix=f"call frostline.{right}(model, {str(directory)!r})",
        )


def _publish(directory: Path, write: Callable[[Path], Any], *, mark: str) -> Path:
    directory = directory.absolute()  # "." has no name of its own
    if directory.is_symlink():  # what it leads to may be part of a checkpoint, which would be damaged by that
        raise CheckpointError(
            f"{directory} is a link to {os.readlink(directory)}",
            where=directory,
            possible=f"a folder that is not there, is empty, or holds an earlier {mark}; no link",
            fix="choose another folder, or remove the link",
        )
    earlier = standing(directory)
    is_taken = earlier.exists() and any(earlier.iterdir() if earlier.is_dir() else [earlier])
    if is_taken and not (earlier / mark).is_file():
        raise CheckpointError(
            f"{directory} exists and holds something else",
            where=directory,
            possible=f"a folder that is not there, is empty, or holds an earlier {mark}",
            fix="choose another folder",
        )
    current = Path.cwd().resolve()
    if directory.resolve() in (current, *current.parents):  # replaced by another, it would be gone under this process
        raise CheckpointError(
            f"{directory} is the current folder of this process, or one above it",
            where=directory,
            possible="a folder that can be replaced as a whole",
            fix="choose another folder, or go to another one first",
        )
    with publishing(directory) as aside:
        write(aside)
    return directory


__all__ = ["identity_of", "load_adapter", "load_trained", "save_adapter", "save_trained"]
