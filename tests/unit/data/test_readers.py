"""Readers: what each file kind gives, and faults that name file and line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from frostline.config.origin import Origin
from frostline.data.json_reader import read_json_lines
from frostline.data.readers import read_csv, read_label_folder, read_parquet
from frostline.errors import DataError

ORIGIN = Origin("data.train", "config.yaml", 12)


def write(path: Path, data: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def test_json_lines(tmp_path: Path) -> None:
    # U+2028 is a line break for str.splitlines, not for JSON Lines
    path = write(tmp_path / "a.jsonl", '\ufeff{"text": "one\u2028two", "label": 1}\r\n\n{"text": "x"}')
    assert dict(read_json_lines(path).columns) == {"text": ["one\u2028two", "x"], "label": [1, None]}


def test_json_array(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", json.dumps([{"text": "x"}, {"text": "y"}], indent=1))
    assert dict(read_json_lines(path).columns) == {"text": ["x", "y"]}


def test_malformed_json_line_names_its_number(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "x"}\n\n{"text": }\n')
    with pytest.raises(DataError, match=r"a\.jsonl, line 3 is not JSON") as error:
        read_json_lines(path, origin=ORIGIN)
    assert "config.yaml, line 12: data.train" in str(error.value)


def test_json_line_that_is_no_object(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 2 is not an object but list"):
        read_json_lines(write(tmp_path / "a.jsonl", '{"text": "x"}\n["y"]\n'))


def test_malformed_json_array_names_its_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.json, line 2 is not JSON"):
        read_json_lines(write(tmp_path / "a.json", '[{"text": "x"},\n{"text" "y"}]'))


def test_bad_utf8_names_line_and_offset(tmp_path: Path) -> None:
    data = b'{"text": "x"}\n{"text": "\xa35"}\n'
    path = write(tmp_path / "a.jsonl", data)
    with pytest.raises(DataError, match=rf"not UTF-8: byte 0xa3 at offset {data.index(0xA3)} \(line 2\)"):
        read_json_lines(path)
    rows = read_json_lines(path, "replace")
    assert list(rows.column("text")) == ["x", "\ufffd5"]
    assert "replaced in 1 line" in rows.notes[0]


def test_csv_with_quotes_line_breaks_and_long_fields(tmp_path: Path) -> None:
    long = "x" * 200_000  # above the csv module's own limit
    limit = csv.field_size_limit()
    path = write(tmp_path / "a.csv", f'text,label\n"a ""b"", \nc",1\n\n{long},2\n')
    rows = read_csv(path)
    assert dict(rows.columns) == {"text": ['a "b", \nc', long], "label": ["1", "2"]}
    assert csv.field_size_limit() == limit


def test_tsv(tmp_path: Path) -> None:
    assert dict(read_csv(write(tmp_path / "a.tsv", "text\tlabel\na, b\t1\n")).columns) == {
        "text": ["a, b"],
        "label": ["1"],
    }


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("text,label\na,1\nb\n", r"line 3 has 1 fields, the header has 2"),
        ("text,label\na,1,2\n", r"line 2 has 3 fields"),
        ("text,text\na,1\n", r"names the column 'text' more than once"),
        ('text,label\n"a"b,1\n', r"line 2 is malformed"),
        ('text,label\n"a,1\n', r"is malformed"),
    ],
)
def test_malformed_csv(tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(DataError, match=match):
        read_csv(write(tmp_path / "a.csv", text))


def test_csv_bad_utf8(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b"text,label\ncaf\xe9,1\n")
    with pytest.raises(DataError, match=r"byte 0xe9 at offset 14 \(line 2\)"):
        read_csv(path)
    rows = read_csv(path, "replace")
    assert list(rows.column("text")) == ["caf\ufffd"]
    assert rows.notes


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": ["x", "y"], "label": [0, 1]}), tmp_path / "a.parquet")
    assert dict(read_parquet(tmp_path / "a.parquet").columns) == {"text": ["x", "y"], "label": [0, 1]}
    with pytest.raises(DataError, match=r"b\.parquet cannot be read as Parquet"):
        read_parquet(write(tmp_path / "b.parquet", "text,label\n"))


def test_label_folder_is_sorted_and_skips_what_is_no_label(tmp_path: Path) -> None:
    for name in ("b/2.txt", "b/1.txt", "a/1.txt", ".git/1.txt", "__pycache__/1.txt"):
        write(tmp_path / name, name)
    write(tmp_path / "pictures/1.png", "")
    rows = read_label_folder(tmp_path)
    assert rows is not None
    assert dict(rows.columns) == {"text": ["a/1.txt", "b/1.txt", "b/2.txt"], "label": ["a", "b", "b"]}
    assert rows.notes == ("sub-folders without *.txt, not used as labels: pictures",)


def test_label_folder_with_bad_utf8(tmp_path: Path) -> None:
    write(tmp_path / "a/1.txt", b"ok\n\xa3")
    with pytest.raises(DataError, match=r"a.1\.txt is not UTF-8: byte 0xa3 at offset 3 \(line 2\)"):
        read_label_folder(tmp_path)
    rows = read_label_folder(tmp_path, "replace")
    assert rows is not None
    assert list(rows.column("text")) == ["ok\n\ufffd"]
    assert "a/1.txt" in rows.notes[0]
