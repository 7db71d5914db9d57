"""Answers which tensors the weight files of a model hold: names, shapes and dtypes from safetensors headers alone.

Reads no weights and knows nothing of models.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from frostline.checkpoint.safetensors_header import read_header
from frostline.errors import ModelError

from .location import ModelLocation

_ONE_FILE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True)
class TensorHeader:
    """One tensor of a weight file: global shape and dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def read(cls, name: str, shape: Sequence[int], dtype: str, *, file: object, where: str) -> TensorHeader:
        """From an entry of a safetensors header.

        Raises:
            ModelError: torch has no such dtype.
        """
        if dtype not in _DTYPES:
            raise ModelError(
                f"tensor {name!r} in {file} has the unknown dtype {dtype!r}",
                where=where,
                possible=", ".join(_DTYPES),
                fix="convert the file to one of these",
            )
        return cls(tuple(shape), _DTYPES[dtype])


def has_all_weights(folder: Path) -> bool:
    """Whether the weight files of a model are all in `folder`: a download may have ended between two of them."""
    if (folder / _ONE_FILE).is_file():
        return True
    return (folder / _INDEX).is_file() and all((folder / name).is_file() for name in _indexed(folder))


def _indexed(folder: Path) -> list[str]:
    record = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
    return sorted(set(record["weight_map"].values()))


def weight_files(location: ModelLocation) -> list[Path]:
    """The safetensors files that hold the weights of a model folder, in name order.

    Raises:
        ModelError: there are none (only pickled `.bin` files, or nothing), or one that the index names is missing.
    """
    folder = location.path
    assert folder is not None
    if (folder / _ONE_FILE).is_file():
        return [folder / _ONE_FILE]
    if (folder / _INDEX).is_file():
        names = _indexed(folder)
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise ModelError(
                f"weight file {missing[0]!r} of model {location.name!r} is missing ({len(missing)} of {len(names)})",
                where=location.where,
                fix=f"complete the folder {folder}, or delete it and download again",
                possible="every file that model.safetensors.index.json names",
            )
        return [folder / name for name in names]
    pickled = sorted(folder.glob("*.bin"))
    raise ModelError(
        f"model {location.name!r} has no model.safetensors",
        where=location.where,
        possible=f"{folder} holds {pickled[0].name}, a pickle, which Frostline does not open"
        if pickled
        else "a folder with model.safetensors",
        fix="convert it once: transformers' save_pretrained writes safetensors"
        if pickled
        else f"put model.safetensors into {folder}",
    )


def read_headers(files: list[Path], where: str) -> dict[str, TensorHeader]:
    """Names, shapes and dtypes of all tensors in `files`.

    Raises:
        ModelError: a file is truncated or not safetensors, or a dtype is unknown.
    """
    tensors: dict[str, TensorHeader] = {}
    for file in files:
        try:
            stored = read_header(file)
        except ValueError as error:
            raise ModelError(
                f"{file} is truncated or not a safetensors file ({error})",
                where=where,
                fix="copy or download it again (a Git LFS pointer instead of the file looks like this too)",
                possible="a whole safetensors file",
            ) from None
        for tensor in stored:
            tensors[tensor.name] = TensorHeader.read(tensor.name, tensor.shape, tensor.dtype, file=file, where=where)
    return tensors


def main_dtype(tensors: dict[str, TensorHeader]) -> torch.dtype:
    """The floating dtype that most elements have; float32 when there is none."""
    elements: Counter[torch.dtype] = Counter()
    for tensor in tensors.values():
        if tensor.dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
            elements[tensor.dtype] += max(1, int(torch.Size(tensor.shape).numel()))
    return elements.most_common(1)[0][0] if elements else torch.float32
