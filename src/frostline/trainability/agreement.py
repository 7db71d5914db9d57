"""What the processes of a group know together, so that all of them go on or fail together.

Knows nothing of plans. Without a group everything is what this process knows, and nothing communicates.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Agreement:
    """Joint answers of the processes of `group`; None: this process alone.

    Distributed: each method is collective; call it on every process of the group, in the same order.

    Attributes:
        process_ranks: global ranks of the group, in its order.
    """

    def __init__(self, group: ProcessGroup | None) -> None:
        self._group = group
        self.process_ranks: list[int] = [0] if group is None else dist.get_process_group_ranks(group)

    @property
    def is_alone(self) -> bool:
        """Whether there is nobody to agree with."""
        return len(self.process_ranks) == 1

    def largest(self, values: Sequence[float]) -> list[float]:
        """The largest of each value over the processes, of which each gives as many."""
        if self.is_alone or not values:
            return list(values)
        joined = torch.tensor(values, dtype=torch.float64, device=self._device())
        dist.all_reduce(joined, dist.ReduceOp.MAX, group=self._group)
        return joined.tolist()

    def gather(self, value: Any) -> list[Any]:
        """What each process gives, in the order of the group: anything that JSON can hold."""
        if self.is_alone:
            return [value]
        own = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(self._device())
        sizes = [int(size) for size in self._gather(torch.tensor([own.numel()], device=self._device()))]
        padded = own.new_zeros(max(sizes))
        padded[: own.numel()] = own
        parts = self._gather(padded)
        return [json.loads(bytes(part[:size].tolist())) for part, size in zip(parts, sizes, strict=True)]

    def union(self, names: Sequence[str]) -> list[str]:
        """What any process names, in the order of the first that does."""
        return list(dict.fromkeys(name for part in self.gather(list(names)) for name in part))

    def _gather(self, tensor: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(tensor) for _ in self.process_ranks]
        dist.all_gather(parts, tensor, group=self._group)
        return parts

    def _device(self) -> torch.device:
        on_cuda = "nccl" in dist.get_backend(self._group)
        return torch.device("cuda", torch.cuda.current_device()) if on_cuda else torch.device("cpu")
