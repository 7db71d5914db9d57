"""Real processes over gloo. A spawn costs seconds: group many assertions in one."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

Worker = Callable[..., Any]


def device_of(process_rank: int) -> torch.device:
    """A GPU of its own for each process where there are enough (the group speaks NCCL there), else the CPU."""
    enough = torch.cuda.device_count() >= dist.get_world_size()
    return torch.device("cuda", process_rank) if enough else torch.device("cpu")


@pytest.fixture
def spawn(tmp_path: Path) -> Callable[..., list[Any]]:
    """`spawn(worker, num_processes, *arguments)` runs `worker(process_rank, *arguments)` in each process of one group.

    Returns what the workers returned, by rank. A worker is a module-level function; an assertion that fails in one of
    them fails the test with its traceback.
    """

    def run(worker: Worker, num_processes: int, *arguments: Any) -> list[Any]:
        folder = tmp_path / f"group-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        mp.spawn(_enter, args=(worker, num_processes, folder, arguments), nprocs=num_processes)  # type: ignore[no-untyped-call]
        return [pickle.loads((folder / f"{rank}.result").read_bytes()) for rank in range(num_processes)]

    return run


def _enter(process_rank: int, worker: Worker, num_processes: int, folder: Path, arguments: tuple[Any, ...]) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    backend = "gloo"
    if torch.cuda.device_count() >= num_processes:
        torch.cuda.set_device(process_rank)
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(
        backend, init_method=f"file://{folder}/rendezvous", rank=process_rank, world_size=num_processes
    )
    try:
        result = worker(process_rank, *arguments)
        dist.barrier()
    finally:
        dist.destroy_process_group()
    (folder / f"{process_rank}.result").write_bytes(pickle.dumps(result))
