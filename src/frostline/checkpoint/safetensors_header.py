"""Which tensors a safetensors file holds, and where in it, from its header alone.

Reads no weights. Those who call it know whose file it is and say so in their errors.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Sizes beyond this are not headers but a file that is not safetensors.
_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file.

    Attributes:
        name: its name.
        dtype: in the words of the format, as `F32`.
        shape: its shape.
        start, stop: its bytes, counted from the start of the file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def read_header(path: Path) -> list[StoredTensor]:
    """The tensors of `path`, in the order of its header.

    Raises:
        ValueError: the file is cut off, too long, or not safetensors.
    """
    total = path.stat().st_size
    with path.open("rb") as stream:
        prefix = stream.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= min(_MAX_HEADER_BYTES, total - 8):
            raise ValueError("no header")
        header: Any = json.loads(stream.read(length))
    start = 8 + length
    try:
        header.pop("__metadata__", None)
        tensors = [
            StoredTensor(
                name,
                str(entry["dtype"]),
                tuple(int(size) for size in entry["shape"]),
                start + int(entry["data_offsets"][0]),
                start + int(entry["data_offsets"][1]),
            )
            for name, entry in header.items()
        ]
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"no header ({type(error).__name__}: {error})") from None
    expected = max((tensor.stop for tensor in tensors), default=start)
    if expected != total:
        state = "it is cut off: " if expected > total else ""
        raise ValueError(f"{state}it should have {expected:,} bytes and has {total:,}")
    return tensors
