"""Whether processes that should hold the same trained tensors do. Knows nothing of training."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from frostline.trainability.agreement import Agreement
from frostline.tree import tensor_checksums


def find_unequal(tensors: Mapping[str, Tensor], agreement: Agreement) -> dict[str, list[int]]:
    """Names of tensors that differ between replicas, with the global ranks of the minority.

    A plain tensor is replicated on the whole group; of a distributed tensor those processes hold replicas that have the
    same part of it, so that only replicated dims of its mesh are compared.

    Distributed: collective; call on every process of the group, with the same names.
    """
    if agreement.is_alone:
        return {}
    by_replicas: dict[str, list[str]] = {}
    for name, tensor in tensors.items():
        ranks = _replicas_of(tensor, agreement.process_ranks)
        if len(ranks) > 1:
            by_replicas.setdefault(",".join(map(str, ranks)), []).append(name)
    sums = tensor_checksums({name: tensors[name] for names in by_replicas.values() for name in names})
    digests = {
        ranks: hashlib.sha256(repr([(name, sums.get(name)) for name in names]).encode()).hexdigest()
        for ranks, names in by_replicas.items()
    }
    # Most often all is well: a few bytes are exchanged first, and the sum of each tensor only where they differ.
    if not any(_minorities(agreement.gather(digests), agreement.process_ranks).values()):
        return {}
    per_tensor = {f"{ranks}:{name}": sums.get(name) for ranks, names in by_replicas.items() for name in names}
    found = _minorities(agreement.gather(per_tensor), agreement.process_ranks)
    return {key.partition(":")[2]: ranks for key, ranks in found.items() if ranks}


def _minorities(gathered: Sequence[Mapping[str, Any]], process_ranks: Sequence[int]) -> dict[str, list[int]]:
    """For each key the ranks whose value is not the commonest one; of equally common ones the first holds."""
    values: dict[str, dict[int, Any]] = {}
    for rank, given in zip(process_ranks, gathered, strict=True):
        for key, value in given.items():
            values.setdefault(key, {})[rank] = value
    found: dict[str, list[int]] = {}
    for key, by_rank in values.items():
        held = list(by_rank.values())
        usual = max(held, key=held.count)
        found[key] = [rank for rank, value in by_rank.items() if value != usual]
    return found


def _replicas_of(tensor: Tensor, process_ranks: Sequence[int]) -> tuple[int, ...]:
    """Global ranks, of those of the group, that should hold the same values as this process does."""
    mesh, placements = getattr(tensor, "device_mesh", None), getattr(tensor, "placements", None)
    if mesh is None or placements is None:
        return tuple(process_ranks)
    coordinate = mesh.get_coordinate()
    if coordinate is None or any(placement.is_partial() for placement in placements):
        return ()
    same: Tensor = mesh.mesh
    for dim in reversed(range(same.ndim)):  # from the back, so that the dims before keep their numbers
        if not placements[dim].is_replicate():
            same = same.select(dim, coordinate[dim])
    ranks = same.reshape(-1).tolist()
    return tuple(sorted(set(ranks) & set(process_ranks)))
