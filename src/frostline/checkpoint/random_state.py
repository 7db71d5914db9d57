"""The states of the random generators of python, numpy and torch, without pickle."""

from __future__ import annotations

import base64
import importlib.util
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from frostline.checkpoint.atomic import write_file
from frostline.checkpoint.json_file import read_json

_RANDOM = "random.json"


def save_random_state(directory: Path) -> None:
    """Write the states of the generators of python, numpy and torch (CPU, and CUDA where it is in use)."""
    version, words, gauss = random.getstate()
    states: dict[str, Any] = {
        "python": [version, list(words), gauss],
        "torch": _to_text(torch.get_rng_state()),
        "cuda": [_to_text(item) for item in torch.cuda.get_rng_state_all()] if torch.cuda.is_initialized() else [],
    }
    if importlib.util.find_spec("numpy") is not None:
        import numpy

        name, keys, position, has_gauss, cached = numpy.random.get_state(legacy=True)
        states["numpy"] = [name, [int(key) for key in keys], int(position), int(has_gauss), float(cached)]
    write_file(directory / _RANDOM, json.dumps(states))


def read_random_state(directory: Path) -> Callable[[], None]:
    """What sets the generators as `save_random_state` found them, once it is called.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    return read_json(directory / _RANDOM, _parse)


def _parse(states: dict[str, Any]) -> Callable[[], None]:
    version, words, gauss = states["python"]
    python = (version, tuple(words), gauss)
    random.Random().setstate(python)  # each state is tried on a generator of its own first
    cpu = _from_text(states["torch"])
    try:
        torch.Generator().set_state(cpu)
    except RuntimeError as error:
        raise ValueError(str(error).splitlines()[0]) from None
    cuda = [_from_text(item) for item in states["cuda"]]
    numbers: tuple[Any, ...] | None = None
    if "numpy" in states and importlib.util.find_spec("numpy") is not None:
        import numpy

        name, keys, *rest = states["numpy"]
        numbers = (name, numpy.array(keys, dtype=numpy.uint32), *rest)
        numpy.random.RandomState().set_state(numbers)

    def set_all() -> None:
        random.setstate(python)
        torch.set_rng_state(cpu)
        if numbers is not None:
            import numpy

            numpy.random.set_state(numbers)
        if torch.cuda.is_available() and len(cuda) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(cuda)

    return set_all


def _to_text(state: Tensor) -> str:
    return base64.b64encode(bytes(state.tolist())).decode()


def _from_text(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
