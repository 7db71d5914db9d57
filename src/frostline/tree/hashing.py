"""A digest of a tensor's exact bits."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from frostline.tree.local import local_parts

_CHUNK_ELEMENTS = 1 << 24  # bounds the host copy of a tensor on an accelerator


def tensor_digest(tensor: Tensor) -> str:
    """Hex digest (BLAKE2b, 128 bits) of the raw bytes of `tensor` in row-major order; dtype and shape are not in it.

    Equal digests mean bit-identical values, `-0.0` and NaN payloads included. A tensor on the meta device has no bits:
    its digest is that of nothing. Of a sharded tensor this process hashes its own shard: nothing is communicated.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in local_parts(tensor):
        if part.device.type != "meta" and part.numel():
            flat = part.reshape(-1)
            for start in range(0, flat.numel(), _CHUNK_ELEMENTS):
                chunk = flat[start : start + _CHUNK_ELEMENTS].cpu().contiguous()
                digest.update(chunk.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def tensor_checksum(tensor: Tensor) -> Tensor:
    """Sum of the raw bytes of `tensor`, taken as 64-bit integers that wrap around: a scalar on its device.

    One pass at the speed of memory, so far cheaper than `tensor_digest`. Any change of one element changes it; equal
    sums do not mean equal bits, as two elements that change places keep the sum. Of a sharded tensor it is the sum of
    this process's own shard.
    """
    parts = local_parts(tensor)
    if len(parts) != 1:  # the pieces of a packed tensor
        return torch.stack([tensor_checksum(part) for part in parts]).sum()
    flat = parts[0].reshape(-1).contiguous().view(torch.uint8)
    if flat.storage_offset() % 8:  # a view as 64-bit integers has to start at a multiple of them
        flat = flat.clone()
    whole = flat.numel() // 8 * 8
    return flat[:whole].view(torch.int64).sum() + flat[whole:].sum(dtype=torch.int64)
