"""Largest magnitudes of many tensors, with one wait for each device."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from frostline.tree import local_parts


def largest(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """The largest magnitude in each tensor; those without elements are left out.

    Of a distributed tensor the part of this process counts.
    """
    batches: dict[tuple[torch.device, torch.dtype], dict[str, Tensor]] = {}
    for path, tensor in tensors.items():
        (values,) = local_parts(tensor)  # what trains is never packed
        count = values.numel()
        values = values.coalesce().values() if values.is_sparse else values
        if count:
            top = values.abs().max() if values.numel() else values.new_zeros(())
            top = top.to(torch.promote_types(top.dtype, torch.float32))
            batches.setdefault((top.device, top.dtype), {})[path] = top
    found: dict[str, float] = {}
    for batch in batches.values():  # one transfer to the host for each, instead of one for each tensor
        found.update(zip(batch, torch.stack(list(batch.values())).tolist(), strict=True))
    return {path: found[path] for path in tensors if path in found}
