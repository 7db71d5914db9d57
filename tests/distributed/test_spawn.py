"""The harness itself: two processes see each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def _sum_of_ranks(process_rank: int, start: int) -> tuple[int, int]:
    value = torch.tensor([start + process_rank])
    dist.all_reduce(value)
    return process_rank, int(value)


def test_workers_share_a_group_and_return_by_rank(spawn: Callable[..., list[Any]]) -> None:
    assert spawn(_sum_of_ranks, 2, 10) == [(0, 21), (1, 21)]
