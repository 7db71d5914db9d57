"""Readers: one function per file kind, from bytes on disk to rows.

Every fault names the file and the line. Knows nothing of configs beyond the origin that messages quote, and nothing of
what columns mean.
"""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

from frostline.config.origin import Origin
from frostline.data.rows import Rows, place
from frostline.errors import DataError

EncodingErrors = Literal["strict", "replace"]
_BOM = b"\xef\xbb\xbf"
_UNLABELLED = ("__pycache__",)


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
            _refuse_bytes(path, line, error.start, data[error.start], origin)
    return text.removeprefix("\ufeff")


def _refuse_bytes(path: str | Path, line: int, offset: int, byte: int, origin: Origin | None) -> NoReturn:
    raise DataError(
        f"{path} is not UTF-8: byte 0x{byte:02x} at offset {offset} (line {line})",
        where=place(path, origin),
        possible="UTF-8 text, with or without a byte-order mark",
        fix="save the file as UTF-8 (from Windows-1252: iconv -f CP1252 -t UTF-8), or accept replacement characters "
        "with `{source: ..., encoding_errors: replace}`",
    ) from None


def read_json_lines(path: Path, encoding_errors: EncodingErrors = "strict", origin: Origin | None = None) -> Rows:
    """One JSON object a line; blank lines are skipped. A `.json` file that holds one array is read as its items."""
    data = path.read_bytes().removeprefix(_BOM)
    if data.lstrip()[:1] == b"[":
        return _read_json_array(data, path, encoding_errors, origin)
    replaced: list[int] = []

    def lines() -> Iterator[dict[str, Any]]:
        offset = 0
        for number, line in enumerate(io.BytesIO(data), start=1):
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                if encoding_errors == "strict":
                    _refuse_bytes(path, number, offset + error.start, line[error.start], origin)
                replaced.append(number)
                text = line.decode("utf-8", "replace")
            offset += len(line)
            if not text.strip():
                continue
            try:
                row: object = json.loads(text)
            except json.JSONDecodeError as error:
                raise DataError(
                    f"{path}, line {number} is not JSON: {error.msg} at column {error.colno}: {_short(text)}",
                    where=place(f"{path}, line {number}", origin),
                    possible='one JSON object a line, as {"text": "...", "label": "..."}',
                    fix="correct that line, or write the file again with one object a line and no line breaks in it",
                ) from None
            yield _object(row, path, f"line {number}", origin)

    rows = Rows.from_dicts(lines(), str(path))
    return rows.with_notes(_replaced_note(str(path), len(replaced), "line")) if replaced else rows


def _read_json_array(data: bytes, path: Path, encoding_errors: EncodingErrors, origin: Origin | None) -> Rows:
    text = decode(data, path, encoding_errors, origin)
    try:
        items: object = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}, line {error.lineno} is not JSON: {error.msg} at column {error.colno}",
            where=place(f"{path}, line {error.lineno}", origin),
            possible="one array of objects, or one object a line",
            fix="correct that line",
        ) from None
    listed = cast(list[object], items)
    return Rows.from_dicts((_object(item, path, f"item {i}", origin) for i, item in enumerate(listed)), str(path))


def _object(value: object, path: Path, position: str, origin: Origin | None) -> dict[str, Any]:
    if isinstance(value, dict):
        return cast(dict[str, Any], value)
    raise DataError(
        f"{path}, {position} is not an object but {type(value).__name__}: {_short(json.dumps(value))}",
        where=place(f"{path}, {position}", origin),
        possible="objects whose keys are the columns",
        fix='write it as an object, as {"text": "..."}',
    )


def read_csv(path: Path, encoding_errors: EncodingErrors = "strict", origin: Origin | None = None) -> Rows:
    """A `.csv` (commas) or `.tsv` (tabs) file whose first record names the columns. Every value is a string."""
    data = path.read_bytes()
    text = decode(data, path, encoding_errors, origin)
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    limit = csv.field_size_limit(sys.maxsize)  # the default refuses texts above 131,072 characters
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        try:
            header = next(reader, [])
            columns: list[list[str]] = [[] for _ in header]
            _check_header(header, path, origin)
            for record in reader:
                if not record:
                    continue
                if len(record) != len(header):
                    raise DataError(
                        f"{path}, line {reader.line_num} has {len(record)} fields, the header has {len(header)}",
                        where=place(f"{path}, line {reader.line_num}", origin),
                        possible=f"one field for each of: {', '.join(header)}",
                        fix='put a field that contains the separator, a quote or a line break in double quotes ("")',
                    )
                for column, value in zip(columns, record, strict=True):
                    column.append(value)
        except csv.Error as error:
            raise DataError(
                f"{path}, line {reader.line_num} is malformed: {error}",
                where=place(f"{path}, line {reader.line_num}", origin),
                possible="fields in double quotes, with a quote inside a field written twice",
                fix="correct that record",
            ) from None
    finally:
        csv.field_size_limit(limit)
    rows = Rows(dict(zip(header, columns, strict=True)), str(path))
    if encoding_errors == "replace" and not _is_utf8(data):
        rows = rows.with_notes(_replaced_note(str(path), 1, "file"))
    return rows


def _check_header(header: list[str], path: Path, origin: Origin | None) -> None:
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        raise DataError(
            f"{path} names the column {', '.join(map(repr, repeated))} more than once",
            where=place(f"{path}, line 1", origin),
            possible="one name per column",
            fix="rename the columns in the first line",
        )


def read_parquet(path: Path, encoding_errors: EncodingErrors = "strict", origin: Origin | None = None) -> Rows:
    """A Parquet file; its text is UTF-8 by definition, so `encoding_errors` changes nothing."""
    import pyarrow
    from pyarrow import parquet

    read_table: Callable[..., Any] = parquet.read_table  # pyright: ignore[reportUnknownMemberType]
    try:
        table = read_table(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise DataError(
            f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}",
            where=place(path, origin),
            possible="a complete Parquet file",
            fix="write or copy the file again; a file of another kind needs its own ending (.jsonl, .csv)",
        ) from None
    return Rows(cast(dict[str, list[Any]], table.to_pydict()), str(path))


READERS: dict[str, Callable[[Path, EncodingErrors, Origin | None], Rows]] = {
    ".jsonl": read_json_lines,
    ".json": read_json_lines,
    ".csv": read_csv,
    ".tsv": read_csv,
    ".parquet": read_parquet,
}


def label_folders(folder: Path) -> list[str]:
    """Names of the sub-folders that may be labels, sorted, so that no file system's order shows."""
    with os.scandir(folder) as entries:
        return sorted(
            e.name for e in entries if e.is_dir() and not e.name.startswith(".") and e.name not in _UNLABELLED
        )


def read_label_folder(
    folder: Path, encoding_errors: EncodingErrors = "strict", origin: Origin | None = None
) -> Rows | None:
    """`folder/LABEL/*.txt` as columns `text` and `label`, in order of label, then file name; None if there is none."""
    texts: list[str] = []
    labels: list[str] = []
    replaced: list[str] = []
    empty: list[str] = []
    for label in label_folders(folder):
        directory = os.path.join(folder, label)
        names = sorted(name for name in os.listdir(directory) if name.endswith(".txt"))
        if not names:
            empty.append(label)
        for name in names:
            path = os.path.join(directory, name)
            with open(path, "rb", buffering=0) as file:  # one read call each: thousands of small files
                data = file.read()
            try:
                text = data.decode("utf-8").removeprefix("\ufeff")
            except UnicodeDecodeError:
                text = decode(data, path, encoding_errors, origin)
                replaced.append(f"{label}/{name}")
            texts.append(text)
            labels.append(label)
    if not texts:
        return None
    notes: list[str] = []
    if replaced:
        notes.append(_replaced_note(", ".join(replaced[:3]), len(replaced), "file"))
    if empty:
        notes.append(f"sub-folders without *.txt, not used as labels: {', '.join(empty)}")
    return Rows({"text": texts, "label": labels}, str(folder), tuple(notes))


def _replaced_note(what: str, count: int, unit: str) -> str:
    return f"bytes that are not UTF-8 were replaced in {count:,} {unit}{'s' if count > 1 else ''} ({what})"


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _short(text: str, width: int = 60) -> str:
    text = text.strip()
    return text if len(text) <= width else text[: width - 1] + "…"
