"""JSON that Python's reader takes or refuses in ways of its own: each a fault with file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from frostline.data import load_source
from frostline.errors import DataError

GOOD = '{"text": "a"}\n'


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ('{"text": "\\ud800 lone"}', "line 2 has half of a surrogate pair"),
        ('{"messages": [{"role": "user", "content": "\\uDC00"}]}', "line 2 has half of a surrogate pair"),
        ('{"text": "a", "n": ' + "9" * 5_000 + "}", "line 2 has a whole number with too many digits"),
        ('{"text": ' + "[" * 100_000, "line 2 has values nested too deep"),
        ('{"text": "a", "label": "x", "label": "y"}', "line 2 gives the key 'label' more than once"),
    ],
)
def test_a_line_is_refused(tmp_path: Path, line: str, match: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(GOOD + line + "\n" + GOOD, encoding="utf-8")
    with pytest.raises(DataError, match=match):
        load_source(str(file))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("[" * 100_000, "line 1 has values nested too deep"),
        ('[{"text": "a"},\n{"n": ' + "[" * 100_000, "line 2 has values nested too deep"),
        ('[{"text": "a"},\n{"n": ' + "9" * 5_000 + "}]", "line 2 has a whole number with too many digits"),
        ('[{"text": "a"},\n{"text": "\\udfff"}]', "row 1 has half of a surrogate pair"),
    ],
)
def test_an_array_is_refused(tmp_path: Path, content: str, match: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=match):
        load_source(str(file))


def test_surrogates_are_replaced_where_that_is_asked(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "\\ud800 lone"}\n', encoding="utf-8")
    rows = load_source(str(file), encoding_errors="replace")
    assert (list(rows.column("text")), len(rows.notes)) == (["\ufffd lone"], 1)
    file.write_text('[{"text": "\\ud800 lone"}]\n', encoding="utf-8")
    rows = load_source(str(file), encoding_errors="replace")
    assert (list(rows.column("text")), len(rows.notes)) == (["\ufffd lone"], 1)


def test_what_only_looks_like_a_fault_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    row = {"text": 'say "text": \U0001f600 \\ud800', "label": {"text": "label"}}
    file.write_text(json.dumps(row) + "\n", encoding="utf-8")
    assert load_source(str(file))[0] == row
