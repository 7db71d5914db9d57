"""Readers: one function per file kind, from bytes on disk to rows.

Every fault names the file and the line. Knows nothing of configs beyond the origin that messages quote, and nothing of
what columns mean.
"""

from __future__ import annotations

import csv
import io
import os
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from frostline.config.origin import Origin
from frostline.data.decoding import EncodingErrors, decode, replaced_note
from frostline.data.json_reader import read_json_lines
from frostline.data.rows import Places, Rows, place
from frostline.errors import DataError

_UNLABELLED = ("__pycache__",)


def read_csv(path: Path, encoding_errors: EncodingErrors = "strict", origin: Origin | None = None) -> Rows:
    """A `.csv` (commas) or `.tsv` (tabs) file whose first record names the columns. Every value is a string."""
    data = path.read_bytes()
    text = decode(data, path, encoding_errors, origin)
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    starts, next_line = array("q"), 1  # a record begins in one line and may end in another
    limit = csv.field_size_limit(sys.maxsize)  # the default refuses texts above 131,072 characters
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        try:
            header = next(reader, [])
            columns: list[list[str]] = [[] for _ in header]
            _check_header(header, path, origin)
            next_line = reader.line_num + 1
            for record in reader:
                line, next_line = next_line, reader.line_num + 1
                if not record:
                    continue
                if len(record) != len(header):
                    raise DataError(
                        f"{path}, line {line} has {len(record)} fields, the header has {len(header)}",
                        where=place(f"{path}, line {line}", origin),
                        possible=f"one field for each of: {', '.join(header)}",
                        fix='put a field that contains the separator, a quote or a line break in double quotes ("")',
                    )
                for column, value in zip(columns, record, strict=True):
                    column.append(value)
                starts.append(line)
        except csv.Error as error:
            raise DataError(
                f"{path}, line {next_line} is malformed: {error}",
                where=place(f"{path}, line {next_line}", origin),
                possible="fields in double quotes, with a quote inside a field written twice",
                fix="correct that record",
            ) from None
    finally:
        csv.field_size_limit(limit)
    rows = Rows(dict(zip(header, columns, strict=True)), str(path), places=Places((str(path),), lines=starts))
    if encoding_errors == "replace" and not _is_utf8(data):
        rows = rows.with_notes(replaced_note(str(path), 1, "file"))
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
    paths: list[str] = []
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
            paths.append(path)
            labels.append(label)
    if not texts:
        return None
    notes: list[str] = []
    if replaced:
        notes.append(replaced_note(", ".join(replaced[:3]), len(replaced), "file"))
    if empty:
        notes.append(f"sub-folders without *.txt, not used as labels: {', '.join(empty)}")
    places = Places(paths, range(len(paths)), whole=True)
    return Rows({"text": texts, "label": labels}, str(folder), tuple(notes), places)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
