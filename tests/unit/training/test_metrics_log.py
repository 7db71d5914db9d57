"""metrics.jsonl survives kills and resumes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from frostline.errors import CheckpointError
from frostline.training.metrics_log import MetricsLog, read_metrics, truncate_to


def write(path: Path, steps: range) -> None:
    with MetricsLog(path) as log:
        for step in steps:
            log.write(step, {"loss": step / 7})


def test_records_are_readable_while_the_log_is_open(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        log.write(1, {"loss": 0.5})
        assert list(read_metrics(path)) == [{"step": 1, "loss": 0.5}]


def test_truncate_then_append_equals_an_uninterrupted_log(tmp_path: Path):
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    write(whole, range(1, 11))
    write(cut, range(1, 8))
    truncate_to(cut, 5)
    write(cut, range(6, 11))
    assert cut.read_bytes() == whole.read_bytes()


def test_a_line_torn_by_a_kill_is_passed_over_and_removed(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    write(path, range(1, 4))
    path.write_text(path.read_text() + '{"step": 4, "lo')
    assert [record["step"] for record in read_metrics(path)] == [1, 2, 3]
    truncate_to(path, 9)
    assert path.read_text().endswith("}\n")
    assert len(path.read_text().splitlines()) == 3


def test_a_torn_line_elsewhere_is_damage(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1\n{"step": 2}\n')
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl is damaged in line 1(.|\n)*delete"):
        list(read_metrics(path))


@pytest.mark.parametrize(
    "content", [b'{"step": 1}\n{"loss": "caf\xe9"}\n{"step": 3}\n', b"7\n8\n", b'{"loss": 1}\n{"step": 2}\n']
)
def test_content_of_another_kind_is_damage(tmp_path: Path, content: bytes):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl is damaged in line [12]"):
        truncate_to(path, 3)
    assert path.read_bytes() == content


def test_numbers_json_cannot_say_become_null(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        log.write(1, {"loss": math.nan, "grad_norm": math.inf, "lr": 0.1})
    assert list(read_metrics(path)) == [{"step": 1, "loss": None, "grad_norm": None, "lr": 0.1}]


def test_truncate_without_a_file_does_nothing(tmp_path: Path):
    truncate_to(tmp_path / "metrics.jsonl", 3)
    assert not list(tmp_path.iterdir())
