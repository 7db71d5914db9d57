from __future__ import annotations

import json
from pathlib import Path

import pytest

from frostline.checkpoint import BaseIdentity, Manifest
from frostline.checkpoint.manifest import describe_files
from frostline.errors import CheckpointError


def written(tmp_path: Path) -> Manifest:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "a.bin").write_bytes(b"0123456789")
    (tmp_path / "b.json").write_text("{}")
    manifest = Manifest(
        step=3,
        epoch=0.5,
        base=BaseIdentity("org/model", None, "sampled:12", "float32"),
        plan_digest="ab",
        method={"method": "lora", "rank": 8},
        without_state=("x",),
        files=describe_files(tmp_path),
    )
    manifest.write(tmp_path)
    return manifest


def test_it_reads_back_equal(tmp_path: Path) -> None:
    manifest = written(tmp_path)
    assert Manifest.read(tmp_path) == manifest
    assert sorted(manifest.files) == ["b.json", "state/a.bin"]
    manifest.verify_files(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"01234", "state/a.bin has 5 bytes, not 10"), (b"0123456780", "state/a.bin was changed"), (None, "is missing")],
)
def test_a_truncated_edited_or_missing_file_is_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    manifest = written(tmp_path)
    file = tmp_path / "state" / "a.bin"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        manifest.verify_files(tmp_path)
    manifest.verify_files(tmp_path, ("b.json",))


def test_no_manifest_means_no_complete_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a complete checkpoint"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format_version": 1}'])
def test_a_damaged_manifest(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match=rf"manifest.json is damaged(.|\n)*delete {tmp_path.name}/"):
        Manifest.read(tmp_path)


def test_a_later_format_asks_for_a_newer_frostline(tmp_path: Path) -> None:
    written(tmp_path)
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 2}))
    with pytest.raises(CheckpointError, match="format version 2"):
        Manifest.read(tmp_path)
