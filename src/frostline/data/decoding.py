"""Decoding: bytes on disk to text, and the faults of bytes that are not UTF-8.

Knows nothing of file kinds or columns.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NoReturn

from frostline.config.origin import Origin
from frostline.data.rows import place
from frostline.errors import DataError

EncodingErrors = Literal["strict", "replace"]


def decode(data: bytes, path: str | Path, encoding_errors: EncodingErrors, origin: Origin | None) -> str:
    """Text of UTF-8 `data` (a leading byte-order mark is dropped).

    Raises:
        DataError: bytes that are not UTF-8 and `encoding_errors` is "strict"; names file, line and byte offset.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        if encoding_errors == "replace":
            text = data.decode("utf-8", "replace")
        else:
            line = data.count(b"\n", 0, error.start) + 1
            refuse_bytes(path, line, error.start, data[error.start], origin)
    return text.removeprefix("\ufeff")


def refuse_bytes(path: str | Path, line: int, offset: int, byte: int, origin: Origin | None) -> NoReturn:
    raise DataError(
        f"{path} is not UTF-8: byte 0x{byte:02x} at offset {offset} (line {line})",
        where=place(path, origin),
        possible="UTF-8 text, with or without a byte-order mark",
        fix="save the file as UTF-8 (from Windows-1252: iconv -f CP1252 -t UTF-8), or accept replacement characters "
        "with `{source: ..., encoding_errors: replace}`",
    ) from None


def replaced_note(what: str, count: int, unit: str) -> str:
    """The note of a reader that put replacement characters into `count` lines, rows or files."""
    return f"bytes that are not UTF-8 were replaced in {count:,} {unit}{'s' if count > 1 else ''} ({what})"
