"""Sources: from the string that a config gives (`data.train`) to rows.

Decides what kind of source a string is and reads it; the file kinds are in `readers`, the hub in `hub`. Knows nothing
of what columns mean.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from frostline.config.origin import Origin
from frostline.data.decoding import EncodingErrors
from frostline.data.packages import PREFIX, find_in_package
from frostline.data.readers import READERS, label_folders, read_label_folder
from frostline.data.rows import Places, Rows, place
from frostline.errors import DataError

_KINDS = (
    "a .jsonl, .json, .csv, .tsv or .parquet file, a folder of them, a folder LABEL/*.txt, "
    "package:PACKAGE/folder, or a hub id org/name"
)
_SPLITS: Mapping[str, str] = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "eval": "validation",
    "test": "test",
}
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def load_source(
    source: str,
    split: str | None = None,
    name: str | None = None,
    origin: Origin | None = None,
    *,
    encoding_errors: EncodingErrors = "strict",
) -> Rows:
    """Read one data source.

    Args:
        source: a file (.jsonl, .json, .csv, .tsv, .parquet), a folder of such files, a folder LABEL/*.txt (columns
            `text` and `label`), `package:PACKAGE/folder[/file]` (data inside an installed Python package, which is
            not imported), or a hub id `org/name`. Paths are relative to the current directory.
        split: which part of a source that has several: a hub split, or in a folder the files or sub-folder of that
            name (`train.jsonl`, `train-00001.parquet`, `train/`).
        name: configuration of a hub data set (only there).
        origin: where the config named it, for messages.
        encoding_errors: "strict" refuses bytes that are not UTF-8; "replace" puts U+FFFD there and adds a note.

    Raises:
        DataError: the source is missing, empty, of no known kind, malformed or not UTF-8.
    """
    if not source.strip():
        raise DataError(
            "the data source is an empty string", where=origin or "source", possible=_KINDS, fix="name a source"
        )
    if source.startswith(PREFIX):
        _, path = find_in_package(source, place(source, origin), DataError)
    else:
        path = Path(source).expanduser()
        if not path.exists():
            if _HUB_ID.fullmatch(source) and path.suffix.lower() not in READERS and not path.parent.is_dir():
                from frostline.data.hub import load_hub

                return _not_empty(load_hub(source, split, name, origin), source, origin)
            raise _missing(path, source, origin)
    if name is not None:
        raise DataError(
            f"`name: {name}` was given for {source}, which is not a hub data set",
            where=origin or source,
            possible="`name` chooses a configuration of a hub data set org/name",
            fix="remove `name`",
        )
    if path.is_dir():
        rows = _load_folder(path, split, origin, encoding_errors)
    else:
        rows = _load_file(path, split, origin, encoding_errors)
    return _not_empty(replace(rows, source=source), source, origin)


def _load_file(path: Path, split: str | None, origin: Origin | None, encoding_errors: EncodingErrors) -> Rows:
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(
            f"{path} is of no kind that can be read ({path.suffix or 'no ending'})",
            where=origin or path,
            possible=_KINDS,
            fix='convert it to .jsonl, one object a line, as {"text": "..."}',
        )
    if split is not None:
        raise DataError(
            f"`split: {split}` was given for the single file {path}",
            where=origin or path,
            possible="a split chooses within a hub data set or a folder",
            fix="remove `split`, or name the file of that split",
        )
    try:
        return reader(path, encoding_errors, origin)
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror or error}",
            where=place(path, origin),
            possible="a file that this user may read",
            fix="check its permissions",
        ) from None


def _load_folder(folder: Path, split: str | None, origin: Origin | None, encoding_errors: EncodingErrors) -> Rows:
    if split is not None and (folder / split).is_dir():
        return _load_folder(folder / split, None, origin, encoding_errors)
    files = sorted(p for p in folder.iterdir() if p.suffix.lower() in READERS and not p.name.startswith("."))
    if not files:
        rows = None if split is not None else read_label_folder(folder, encoding_errors, origin)
        if rows is None:
            raise _nothing_in(folder, split, origin)
        return rows
    chosen = _files_of_split(folder, files, split, origin)
    kinds = sorted({p.suffix.lower() for p in chosen})
    if len(kinds) > 1:
        raise DataError(
            f"{folder} holds files of several kinds: {', '.join(kinds)}",
            where=place(folder, origin),
            possible="\n".join(p.name for p in chosen[:10]),
            fix="name one file, or keep one kind in the folder",
        )
    parts = [_load_file(p, None, origin, encoding_errors) for p in chosen]
    if len(parts) == 1:
        return parts[0]
    names = dict.fromkeys(name for part in parts for name in part.columns)
    columns = {n: [v for part in parts for v in part.columns.get(n, [None] * len(part))] for n in names}
    return Rows(columns, str(folder), tuple(note for part in parts for note in part.notes), Places.join(parts))


def _files_of_split(folder: Path, files: list[Path], split: str | None, origin: Origin | None) -> list[Path]:
    found: dict[str, list[Path]] = {}
    for path in files:
        word = re.split(r"[-_.]", path.name.lower(), maxsplit=1)[0]
        found.setdefault(_SPLITS.get(word, ""), []).append(path)
    if split is not None:
        exact = [p for p in files if p.stem == split]
        chosen = exact or found.get(_SPLITS.get(split, split), [])
        if chosen:
            return chosen
        raise _nothing_in(folder, split, origin)
    named = sorted(key for key in found if key)
    if len(named) > 1:
        # reading train and test as one would train on the test data without a word
        raise DataError(
            f"{folder} holds the splits {', '.join(named)}, and none was chosen",
            where=place(folder, origin),
            possible=f"split: {' | '.join(named)}",
            fix=f"write `{{source: {folder}, split: {named[-1]}}}`, or name one file",
        )
    return files


def _nothing_in(folder: Path, split: str | None, origin: Origin | None) -> DataError:
    entries = sorted(p.name + ("/" if p.is_dir() else "") for p in folder.iterdir())
    below = [name for name in label_folders(folder) if label_folders(folder / name)]
    wanted = f"for split {split!r}" if split is not None else "that can be read"
    fix = "put one sub-folder per label with .txt files there, or name a data file"
    if split is not None:
        fix = "choose one of the names above as `split`, or remove `split`"
    elif below:
        fix = f"the sub-folders hold folders: choose one of them, as `{{source: {folder}, split: {below[-1]}}}`"
    return DataError(
        f"there is no data {wanted} in the folder {folder}",
        where=place(folder, origin),
        possible=f"it holds: {', '.join(entries[:12]) + (' ...' if len(entries) > 12 else '') or 'nothing'}",
        fix=fix,
    )


def _missing(path: Path, source: str, origin: Origin | None) -> DataError:
    parent = path.parent
    while not parent.is_dir() and parent != parent.parent:
        parent = parent.parent
    entries = sorted(p.name for p in parent.iterdir() if not p.name.startswith("."))
    wanted = path.relative_to(parent).parts[0] if path.is_relative_to(parent) else path.name
    near = difflib.get_close_matches(wanted, entries, n=3)
    if near:
        possible = f"near it in {parent}: {', '.join(near)}"
    else:
        data = [e for e in entries if Path(e).suffix.lower() in READERS or (parent / e).is_dir()]
        possible = f"in {parent}: {', '.join(data[:10]) or 'no data file or folder'}"
    return DataError(
        f"there is no file or folder {path}" if str(path) == source else f"there is no {source} ({path})",
        where=origin or source,
        possible=possible,
        fix=f"correct the path (it is relative to {Path.cwd()})" if not path.is_absolute() else "correct the path",
    )


def _not_empty(rows: Rows, source: str, origin: Origin | None) -> Rows:
    if len(rows) == 0:
        raise DataError(
            f"{source} is empty: it holds no example",
            where=origin or source,
            possible="at least one example",
            fix="check that the file was written completely, or name another source",
        )
    return rows
