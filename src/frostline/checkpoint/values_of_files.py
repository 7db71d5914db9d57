"""Are the values of a model in memory still those of the files that it was loaded from? A merge changes them.

Samples blocks of each tensor, as the fingerprint does. Knows names and numbers; nothing of plans or runs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from frostline.checkpoint.safetensors_header import StoredTensor, read_header
from frostline.tree import canonical_named_parameters, unwrap

_BLOCK_ELEMENTS = 4096
_NUM_BLOCKS = 8
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def changed_since_loaded(
    model: torch.nn.Module, files: Iterable[Path], paths: Collection[str], instead: Mapping[str, Tensor] | None = None
) -> str | None:
    """The first of `paths` whose values are not those in `files`; None where all agree.

    Passed over is what the files hold under another name or shape or as other than plain numbers, and what
    transformers computes anew while it loads: there is nothing to compare. Another dtype is the same base.

    Args:
        files: safetensors.
        paths: canonical paths of parameters.
        instead: values by path that stand for those in the model, such as weights that a merge has put aside.
    """
    prefix = getattr(unwrap(model), "base_model_prefix", "")
    converted = _converted_names(model)
    stored = {
        tensor.name: (file, tensor)
        for file in files
        for tensor in read_header(file)
        if tensor.dtype in _DTYPES and not any(pattern.search(tensor.name) for pattern in converted)
    }
    names: dict[int, list[str]] = {}
    parameters = dict(canonical_named_parameters(model))
    for name, parameter in parameters.items():
        names.setdefault(id(parameter), []).append(name)
    for path in paths:
        held = (instead or {}).get(path, parameters[path]).detach()
        found = [
            stored[name]
            for alias in names[id(parameters[path])]  # of a tied tensor: whichever was stored
            for name in _names_in_files(alias, prefix)
            if name in stored and stored[name][1].shape == tuple(held.shape)
        ]
        if found and not held.is_meta and not any(_holds(file, tensor, held) for file, tensor in found):
            return path
    return None


def same_numbers(stored: Tensor, held: Tensor) -> bool:
    """Whether `held` is `stored`, in its own dtype or rounded to 16 bits on the way."""
    held = held.detach().cpu()
    ways = (stored, stored.to(torch.bfloat16), stored.to(torch.float16))
    return any(torch.allclose(way.to(held.dtype), held, rtol=0.0, atol=0.0, equal_nan=True) for way in ways)


def _holds(file: Path, tensor: StoredTensor, held: Tensor) -> bool:
    data = held.contiguous().reshape(-1)
    with open(file, "rb") as stream:
        return all(
            same_numbers(_read(stream, tensor, start, stop), data[start:stop]) for start, stop in _blocks(data.numel())
        )


def _read(stream: BinaryIO, tensor: StoredTensor, start: int, stop: int) -> Tensor:
    dtype = _DTYPES[tensor.dtype]
    stream.seek(tensor.start + start * dtype.itemsize)
    return torch.frombuffer(bytearray(stream.read((stop - start) * dtype.itemsize)), dtype=dtype)


def _blocks(count: int) -> Iterator[tuple[int, int]]:
    """Ranges of elements: all of a small tensor, evenly spaced blocks of a large one."""
    if count <= _NUM_BLOCKS * _BLOCK_ELEMENTS:
        if count:
            yield 0, count
        return
    for index in range(_NUM_BLOCKS):
        start = (count - _BLOCK_ELEMENTS) * index // (_NUM_BLOCKS - 1)
        yield start, start + _BLOCK_ELEMENTS


def _names_in_files(path: str, prefix: str) -> tuple[str, ...]:
    """The names that transformers takes for `path`: a base without its head is stored without the prefix."""
    return (path, f"{prefix}.{path}", path.removeprefix(f"{prefix}.")) if prefix else (path,)


def _converted_names(model: torch.nn.Module) -> list[re.Pattern[str]]:
    """Names in the files whose numbers transformers reorders or fuses while it loads, as its model says."""
    conversions: Iterable[Any] = getattr(unwrap(model), "_weight_conversions", None) or ()
    return [
        re.compile(pattern)
        for conversion in conversions
        if getattr(conversion, "operations", None)
        for pattern in conversion.source_patterns
    ]
