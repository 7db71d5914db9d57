"""The same rows from every kind of file give the same weights, bit for bit."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

Make = Callable[..., dict[str, Any]]
ROWS = [
    {"text": f'{label} film, "w{n}" {"w1 " * (n % 5)}\nw{n % 7}', "label": label}
    for label in ("bad", "good")  # a folder LABEL/*.txt reads in this order
    for n in range(12)
]


def delimited(path: Path, separator: str) -> str:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["text", "label"], delimiter=separator)
        writer.writeheader()
        writer.writerows(ROWS)
    return str(path)


def folder(path: Path) -> str:
    for number, row in enumerate(ROWS):
        file = path / row["label"] / f"{number:03}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(row["text"], encoding="utf-8")
    return str(path)


def parquet(path: Path) -> str:
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    return str(path)


def text(path: Path, content: str) -> str:
    path.write_text(content, encoding="utf-8")
    return str(path)


KINDS: dict[str, Callable[[Path], str]] = {
    "parquet": lambda path: parquet(path / "rows.parquet"),
    "csv": lambda path: delimited(path / "rows.csv", ","),
    "tsv": lambda path: delimited(path / "rows.tsv", "\t"),
    "json": lambda path: text(path / "rows.json", json.dumps(ROWS)),
    "folder": lambda path: folder(path / "rows"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_kind(kind: str, classify: Make, launch: Any, tmp_path: Path) -> None:
    config = classify(ROWS, evaluation={"every": "never"})
    expected = launch(config, name="jsonl")
    other = launch(config, f"data.train={KINDS[kind](tmp_path)}", name=kind)
    assert other.trained_bytes == expected.trained_bytes


def test_a_validation_source_of_its_own_and_other_column_names(classify: Make, launch: Any, write: Any) -> None:
    renamed = [{"body": row["text"], "topic": row["label"]} for row in ROWS]
    config = classify(ROWS[:8] + ROWS[12:], data={"validation": write(ROWS[8:12], "validation")})
    run = launch(config)
    again = launch(
        config,
        f"data.train={write(renamed[:8] + renamed[12:], 'renamed')}",
        f"data.validation={write(renamed[8:12], 'renamed-validation')}",
        "data.columns.text=body",
        "data.columns.label=topic",
        name="renamed",
    )
    assert again.trained_bytes == run.trained_bytes
    assert again.result.last_metrics == run.result.last_metrics
