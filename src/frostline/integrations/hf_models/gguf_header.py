"""Counts the elements of the tensors in a GGUF file from its header alone.

The package gguf takes seconds to open a file, since it makes an array of every token; this skips over them. The layout
is that of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import BinaryIO

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of a value, by type
_STRING, _ARRAY = 8, 9


def count_elements(file: Path) -> int | None:
    """Elements of all tensors of a GGUF file; None where the header is not understood."""
    try:
        with file.open("rb") as stream:
            magic, version = struct.unpack("<4sI", stream.read(8))
            if magic != b"GGUF" or version not in (2, 3):
                return None
            num_tensors, num_values = struct.unpack("<QQ", stream.read(16))
            for _ in range(num_values):
                _skip_string(stream)
                _skip_value(stream, _number(stream, "<I"))
            total = 0
            for _ in range(num_tensors):
                _skip_string(stream)
                num_dims = _number(stream, "<I")
                total += math.prod(struct.unpack(f"<{num_dims}Q", stream.read(8 * num_dims)))
                struct.unpack("<IQ", stream.read(12))  # type and offset
            return total
    except (struct.error, KeyError, OSError, OverflowError, MemoryError):
        return None  # the conversion says what is wrong with it


def _number(stream: BinaryIO, layout: str) -> int:
    return struct.unpack(layout, stream.read(struct.calcsize(layout)))[0]


def _skip_string(stream: BinaryIO) -> None:
    stream.seek(_number(stream, "<Q"), 1)


def _skip_value(stream: BinaryIO, kind: int) -> None:
    if kind == _STRING:
        _skip_string(stream)
    elif kind == _ARRAY:
        of, length = _number(stream, "<I"), _number(stream, "<Q")
        if of in _SIZES:
            stream.seek(_SIZES[of] * length, 1)
        else:
            for _ in range(length):
                _skip_value(stream, of)
    else:
        stream.seek(_SIZES[kind], 1)
