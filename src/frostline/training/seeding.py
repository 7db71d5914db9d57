"""Random numbers of a run: one seed for every generator, and a shield so that evaluation does not move them.

Knows nothing of models or data. The data order has its own generator (a function of seed and epoch).
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_everything(seed: int, *, deterministic: bool) -> None:
    """Seeds Python, NumPy and torch (all devices); `deterministic` picks reproducible kernels, process-wide.

    Where an operation has no reproducible kernel torch warns by name and runs it.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    if deterministic:
        # cuBLAS reads this when its handle is made; harmless without CUDA.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    torch.backends.cudnn.deterministic = deterministic
    torch.backends.cudnn.benchmark = False
    # Would fill every fresh buffer with NaN: a debugging aid that costs a full write of each temporary.
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]


@contextmanager
def preserved_rng(device: torch.device) -> Iterator[None]:
    """Gives Python, NumPy and torch (CPU and `device`) their random state back on exit."""
    python_state, numpy_state, cpu_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    device_state = None
    if device.type == "cuda":
        device_state = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        device_state = torch.mps.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(cpu_state)
        if device_state is not None and device.type == "cuda":
            torch.cuda.set_rng_state(device_state, device)
        elif device_state is not None:
            torch.mps.set_rng_state(device_state)
