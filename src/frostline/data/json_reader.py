"""JSON: files of one object a line, or of one array of objects, as rows.

Every fault names the file and the line. Knows nothing of what columns mean.
"""

from __future__ import annotations

import io
import json
import re
import sys
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from frostline.config.origin import Origin
from frostline.data.decoding import EncodingErrors, decode, refuse_bytes, replaced_note
from frostline.data.rows import Places, Rows, place
from frostline.errors import DataError

_BOM = b"\xef\xbb\xbf"
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def read_json_lines(path: Path, encoding_errors: EncodingErrors = "strict", origin: Origin | None = None) -> Rows:
    """One JSON object a line; blank lines are skipped. A `.json` file that holds one array is read as its items."""
    data = path.read_bytes().removeprefix(_BOM)
    if data.lstrip()[:1] == b"[":
        return _read_json_array(data, path, encoding_errors, origin)
    replaced: set[int] = set()
    starts = array("q")

    def lines() -> Iterator[dict[str, Any]]:
        offset = 0
        for number, line in enumerate(io.BytesIO(data), start=1):
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                if encoding_errors == "strict":
                    refuse_bytes(path, number, offset + error.start, line[error.start], origin)
                replaced.add(number)
                text = line.decode("utf-8", "replace")
            offset += len(line)
            if not text.strip():
                continue
            try:
                parsed: object = json.loads(text)
            except json.JSONDecodeError as error:
                raise DataError(
                    f"{path}, line {number} is not JSON: {error.msg} at column {error.colno}: {_short(text)}",
                    where=place(f"{path}, line {number}", origin),
                    possible='one JSON object a line, as {"text": "...", "label": "..."}',
                    fix="correct that line, or write the file again with one object a line and no line breaks in it",
                ) from None
            except (ValueError, RecursionError) as error:
                raise _unreadable_json(error, f"{path}, line {number}", origin) from None
            row = _object(parsed, path, f"line {number}", origin)
            if text.count('":') != len(row):  # as many in a flat object that gives each key once
                _require_single_keys(text, row, f"{path}, line {number}", origin)
            if _SURROGATE_ESCAPE.search(text) and _has_surrogate(row):
                if encoding_errors == "strict":
                    raise _lone_surrogate(f"{path}, line {number}", origin)
                replaced.add(number)
                row = _without_surrogates(row)
            starts.append(number)
            yield row

    rows = Rows.from_dicts(lines(), str(path))
    rows = replace(rows, places=Places((str(path),), lines=starts))
    return rows.with_notes(replaced_note(str(path), len(replaced), "line")) if replaced else rows


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
    except (ValueError, RecursionError) as error:
        raise _unreadable_json(error, f"{path}, line {_line_of(error, text)}", origin) from None
    listed = [_object(item, path, f"row {i}", origin) for i, item in enumerate(cast(list[object], items))]
    notes: list[str] = []
    broken = [i for i, item in enumerate(listed) if _has_surrogate(item)] if _SURROGATE_ESCAPE.search(text) else []
    if broken:
        if encoding_errors == "strict":
            raise _lone_surrogate(f"{path}, row {broken[0]}", origin)
        notes.append(replaced_note(str(path), len(broken), "row"))
        for i in broken:
            listed[i] = _without_surrogates(listed[i])
    return Rows.from_dicts(listed, str(path), tuple(notes))


def _unreadable_json(error: ValueError | RecursionError, where: str, origin: Origin | None) -> DataError:
    """What Python's reader of JSON raises beside syntax: its limits."""
    what = "values nested too deep" if isinstance(error, RecursionError) else "a whole number with too many digits"
    return DataError(
        f"{where} has {what} to be read",
        where=place(where, origin),
        possible=f"whole numbers of at most {sys.get_int_max_str_digits():,} digits; lists and objects nested a few "
        "hundred times at most",
        fix="correct or remove it; a long number can be written as a text",
    )


def _line_of(error: ValueError | RecursionError, text: str) -> int:
    """The line of a JSON text in which Python's reader met its limit."""
    if isinstance(error, ValueError):
        match = re.search(rf"\d{{{sys.get_int_max_str_digits() + 1},}}", text)
        return text.count("\n", 0, match.start()) + 1 if match else 1
    depth = deepest = position = 0
    for match in re.finditer(r'"(?:[^"\\]|\\.)*"|[][{}]', text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(match[0], 0)
        if depth > deepest:
            deepest, position = depth, match.start()
    return text.count("\n", 0, position) + 1


def _require_single_keys(text: str, row: dict[str, Any], where: str, origin: Origin | None) -> None:
    """Refuses an object that gives a key twice, of which Python's reader keeps the last.

    A hook for every object would make reading a third slower, so only suspicious lines are read again.
    """
    for key in row:
        if text.count(f'"{key}"') > 1:
            break
    else:
        return

    def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            raise DataError(
                f"{where} gives the key {next(key for key in keys if keys.count(key) > 1)!r} more than once",
                where=place(where, origin),
                possible="each key once in an object",
                fix="remove or rename all but one of them",
            )
        return found

    json.loads(text, object_pairs_hook=check)


def _has_surrogate(row: dict[str, Any]) -> bool:
    return _SURROGATE.search(json.dumps(row, ensure_ascii=False)) is not None


def _without_surrogates(row: dict[str, Any]) -> dict[str, Any]:
    return json.loads(_SURROGATE.sub("\ufffd", json.dumps(row, ensure_ascii=False)))


def _lone_surrogate(where: str, origin: Origin | None) -> DataError:
    return DataError(
        f"{where} has half of a surrogate pair (as \\ud800), which is no character",
        where=place(where, origin),
        possible="characters above U+FFFF as they are, or as two \\u escapes that belong together",
        fix="correct it, or accept replacement characters with `{source: ..., encoding_errors: replace}`",
    )


def _object(value: object, path: Path, position: str, origin: Origin | None) -> dict[str, Any]:
    if isinstance(value, dict):
        return cast(dict[str, Any], value)
    raise DataError(
        f"{path}, {position} is not an object but {type(value).__name__}: {_short(json.dumps(value))}",
        where=place(f"{path}, {position}", origin),
        possible="objects whose keys are the columns",
        fix='write it as an object, as {"text": "..."}',
    )


def _short(text: str, width: int = 60) -> str:
    text = text.strip()
    return text if len(text) <= width else text[: width - 1] + "…"
