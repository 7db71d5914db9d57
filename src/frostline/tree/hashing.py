"""A digest, and a cheap checksum, of a tensor's exact bits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor

from frostline.tree.local import local_parts

_CHUNK_ELEMENTS = 1 << 24  # bounds the host copy of a tensor on an accelerator
_WORDS = 1 << 15  # 64-bit words that are weighted at once: what fits into a cache, and the same on every device
_BLOCK = 1 << 9  # chunks of so many words at once on an accelerator, which bounds the copy there


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


def tensor_checksums(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """`tensor_checksum` of each, read from each device at once; what lies on the meta device has none."""
    by_device: dict[torch.device, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if tensor.device.type != "meta":
            by_device.setdefault(tensor.device, {})[name] = tensor_checksum(tensor)
    found: dict[str, int] = {}
    for sums in by_device.values():  # one transfer to the host for each device, instead of one for each tensor
        found.update(zip(sums, torch.stack(list(sums.values())).tolist(), strict=True))
    return {name: found[name] for name in tensors if name in found}


def tensor_checksum(tensor: Tensor) -> Tensor:
    """Weighted sum of the raw bytes of `tensor`, taken as 64-bit integers that wrap around: a scalar on its device.

    Multilinear hashing: each word has an odd weight of its own, drawn by its place. One pass near the speed of memory,
    on the device, so far cheaper than `tensor_digest`. A change within one word always changes it; any other change,
    and any exchange of places, leaves it as it was with a chance of about 2^-63. It is no defence against a forger.
    Of a sharded tensor this process's own shard counts.
    """
    parts = local_parts(tensor)
    if len(parts) != 1:  # the pieces of a packed tensor
        sums = torch.stack([tensor_checksum(part) for part in parts])
        return (sums * _draw(len(parts), sums.device, 4)).sum()
    flat = parts[0].reshape(-1).contiguous().view(torch.uint8)
    if flat.storage_offset() % 8:  # a view as 64-bit integers has to start at a multiple of them
        flat = flat.clone()
    whole = flat.numel() // 8 * 8
    words, tail = flat[:whole].view(torch.int64), flat[whole:]
    total = torch.full((), flat.numel(), dtype=torch.int64, device=flat.device)  # zeros at the end count too
    if words.numel():
        total += _sum_of_chunks(words)
    if tail.numel():
        total += (tail.to(torch.int64) * _weights(8, flat.device, 1)[: tail.numel()]).sum()
    return total


def _sum_of_chunks(words: Tensor) -> Tensor:
    weights = _weights(_WORDS, words.device, 2)
    if words.numel() <= _WORDS:
        return (words * weights[: words.numel()]).sum()
    num_rows, rest = divmod(words.numel(), _WORDS)
    rows = words[: num_rows * _WORDS].view(num_rows, _WORDS)
    if words.device.type == "cpu":
        product = torch.empty_like(weights)  # stays in the cache: the words are read once, nothing is written
        sums = [torch.mul(row, weights, out=product).sum() for row in rows]
    else:
        sums = [(block * weights).sum(dim=1) for block in rows.split(_BLOCK)]
    if rest:
        sums.append((words[-rest:] * weights[:rest]).sum())
    joined = torch.cat([part.reshape(-1) for part in sums])
    return (joined * _draw(joined.numel(), words.device, 3)).sum()


@cache
def _weights(count: int, device: torch.device, salt: int) -> Tensor:
    return _draw(count, device, salt)


def _draw(count: int, device: torch.device, salt: int) -> Tensor:
    """`count` odd 64-bit weights, each a function of its index and `salt`: the finalizer of MurmurHash3."""
    first = salt << 32
    bits = torch.arange(first, first + count, dtype=torch.int64, device=device) * -0x61C8864680B583EB
    for factor in (-0xAE502812AA7333, -0x3B314601E57A13AD):
        bits = (bits ^ ((bits >> 33) & 0x7FFFFFFF)) * factor
    return (bits ^ ((bits >> 33) & 0x7FFFFFFF)) | 1
