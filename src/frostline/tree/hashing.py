"""A cheap checksum of a tensor's exact bits."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch
from torch import Tensor

from frostline.tree.local import local_parts

_WORDS = 1 << 15  # 64-bit words that are weighted at once: what fits into a cache, and the same on every device
_WORTH_THREADS = 1 << 20  # elements: below, starting threads takes longer than the sums
_BLOCK = 1 << 9  # chunks of so many words at once on an accelerator, which bounds the copy there


def tensor_checksums(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """`tensor_checksum` of each, read from each device at once; what lies on the meta device has none.

    What lies in the host's memory is read by as many threads as torch computes with.
    """
    by_device: dict[torch.device, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if tensor.device.type != "meta":
            by_device.setdefault(tensor.device, {})[name] = tensor
    found: dict[str, int] = {}
    for device, group in by_device.items():
        num_threads = torch.get_num_threads() if device.type == "cpu" else 1
        if num_threads > 1 and sum(tensor.numel() for tensor in group.values()) >= _WORTH_THREADS:
            with ThreadPoolExecutor(num_threads) as pool:
                sums = list(pool.map(tensor_checksum, group.values()))
        else:
            sums = [tensor_checksum(tensor) for tensor in group.values()]
        # One transfer to the host for each device, instead of one for each tensor.
        found.update(zip(group, torch.stack(sums).tolist(), strict=True))
    return {name: found[name] for name in tensors if name in found}


def tensor_checksum(tensor: Tensor) -> Tensor:
    """Weighted sum of the raw bytes of `tensor`, taken as 64-bit integers that wrap around: a scalar on its device.

    Multilinear hashing: each word has an odd weight of its own, drawn by its place. One pass near the speed of memory,
    on the device. A change within one word always changes it (`-0.0` and the payload of a NaN are bits too); any other
    change, and any exchange of places, leaves it as it was with a chance of about 2^-63. It is no defence against a
    forger. Of a sharded tensor this process's own shard counts, of one in another layout its row-major order.
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
        sums = [torch.mv(rows, weights)]  # reads the words once and writes nothing; accelerators have it not
    else:
        sums = [(block * weights).sum(dim=1) for block in rows.split(_BLOCK)]
    if rest:
        sums.append((words[-rest:] * weights[:rest]).sum())
    joined = torch.cat([part.reshape(-1) for part in sums])
    few = joined.numel() <= _WORDS
    ranks = _weights(_WORDS, words.device, 3)[: joined.numel()] if few else _draw(joined.numel(), words.device, 3)
    return (joined * ranks).sum()


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
