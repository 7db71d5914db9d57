"""One safetensors file: written from tensors of a model, verified, read back, and put into a model.

Knows names and tensors; nothing of plans, adapters or of what the names mean. Pickled files are refused unread.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from frostline.checkpoint.atomic import disk_errors, sync_file
from frostline.errors import CheckpointError
from frostline.tree import canonical_named_buffers, canonical_named_parameters

PICKLED = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


def values_of(model: torch.nn.Module) -> dict[str, Tensor]:
    """Every parameter and persistent buffer of `model` by canonical path."""
    values: dict[str, Tensor] = {path: item.detach() for path, item in canonical_named_parameters(model)}
    values.update(canonical_named_buffers(model, persistent_only=True))
    return values


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    shown: Mapping[str, str] | None = None,
    *,
    may_be_empty: Collection[str] = (),
) -> None:
    """Write `tensors` to the safetensors file `path` in one step, after names and shapes were read back.

    Args:
        shown: name for messages by name in the file.
        may_be_empty: names in the file of tensors that are known to have no element. Another one that has none is what
            a sharding library leaves, which keeps the values elsewhere.

    Raises:
        CheckpointError: nothing to write; a tensor is empty, without values or not finite; the disk is full.
    """
    faults: list[str] = []
    for name, tensor in tensors.items():
        label = (shown or {}).get(name, name)
        if tensor.is_meta:
            faults.append(f"{label} has no values (meta device)")
        elif tensor.dtype is torch.complex128:
            faults.append(f"{label} is complex128, which safetensors cannot hold (complex64 it can)")
        elif tensor.numel() == 0 and name not in may_be_empty:
            faults.append(f"{label} is empty (shape {list(tensor.shape)})")
        elif (tensor.is_floating_point() or tensor.is_complex()) and not bool(torch.isfinite(tensor).all()):
            faults.append(f"{label} holds values that are not finite")
    if not tensors or faults:
        raise CheckpointError(
            "; ".join(faults[:8]) or "there is nothing to save: the trained part is empty",
            where=path,
            fix="go on from the last good checkpoint"
            if faults
            else "let something train: thaw parameters in `freeze_config`, or give `peft`",
            possible="tensors with finite values",
        )
    # A clone of what shares memory with a larger tensor: safetensors writes whole storages only.
    ready = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    aside = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    with disk_errors(path):
        try:
            save_file(ready, str(aside), metadata={"format": "pt"})
            os.chmod(aside, 0o666 & ~_umask())  # safetensors leaves files that only their owner can read
            sync_file(aside)
            with safe_open(str(aside), framework="pt") as stored:
                found = {name: list(stored.get_slice(name).get_shape()) for name in _names(stored)}
            if found != {name: list(tensor.shape) for name, tensor in ready.items()}:
                raise CheckpointError(
                    f"{path.name} does not hold what was written",
                    where=path,
                    fix="check the disk",
                    possible="the names and shapes that were saved",
                )
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of the safetensors file `path`, on the CPU.

    Raises:
        CheckpointError: missing, truncated or not safetensors (a pickle is never opened).
    """
    if not path.is_file():
        pickled = [item.name for item in sorted(path.parent.glob("*")) if item.suffix in PICKLED]
        raise CheckpointError(
            f"{path.name} is missing"
            + (f"; {', '.join(pickled)} is a pickle, which is never loaded" if pickled else ""),
            where=path.parent,
            possible="a safetensors file",
            fix="convert the pickle to safetensors where you trust it" if pickled else "check the folder",
        )
    try:
        with safe_open(str(path), framework="pt") as stored:
            return {name: stored.get_tensor(name) for name in _names(stored)}
    except (SafetensorError, OSError) as error:
        with open(path, "rb") as stream:
            start = stream.read(2)
        # A pickle begins with its protocol; torch's archive of pickles is a zip file.
        pickled = start[:1] == b"\x80" or start == b"PK"
        raise CheckpointError(
            f"{path.name} is a pickle, which is never loaded" if pickled else f"{path.name} is damaged: {error}",
            where=path,
            possible="a safetensors file",
            fix="convert it to safetensors where you trust it" if pickled else "use another checkpoint",
        ) from None


def require_fit(model: torch.nn.Module, tensors: Mapping[str, Tensor], *, where: Path) -> None:
    """Raise unless `put_tensors` can copy `tensors` (by canonical path) into `model`.

    Raises:
        CheckpointError: names every tensor that the model lacks, that has another shape or is not finite.
    """
    values = values_of(model)
    faults: list[str] = []
    for path, tensor in tensors.items():
        if path not in values:
            faults.append(f"the model has no {path}")
        elif values[path].shape != tensor.shape:
            faults.append(f"{path} has shape {list(tensor.shape)}, in the model {list(values[path].shape)}")
        elif tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            faults.append(f"{path} holds values that are not finite")
    if faults:
        rest = f"; and {len(faults) - 8} more" if len(faults) > 8 else ""
        raise CheckpointError(
            "the file does not fit the model: " + "; ".join(faults[:8]) + rest,
            where=where,
            fix="load it into the model, with the adapters, that it was trained on",
            possible="tensors with the names and shapes of the model, all values finite",
        )


def put_tensors(model: torch.nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy `tensors`, which `require_fit` has seen, into `model`; dtype and device stay the model's."""
    values = values_of(model)
    with torch.no_grad():
        for path, tensor in tensors.items():
            values[path].copy_(tensor)


def _names(stored: Any) -> list[str]:
    return list(stored.keys())
