"""The cache around the conversion; the conversion itself runs in the test of the example that uses a GGUF model."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from frostline.errors import ModelError
from frostline.integrations.hf_models import gguf, local_folder, resolve_location
from frostline.integrations.hf_models.location import ModelLocation


@pytest.fixture
def location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelLocation:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    return resolve_location(str(tmp_path / "model.gguf"))


def test_converts_once_and_says_so(location: ModelLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []

    def convert(_location: ModelLocation, file: Path, target: Path) -> None:
        calls.append(file)
        (target / "config.json").write_text("{}")

    monkeypatch.setattr(gguf, "_convert", convert)
    said: list[str] = []
    first = local_folder(location, say=said.append)
    assert local_folder(location, say=said.append) == first
    assert calls == [location.path]
    (line,) = said
    assert line.startswith("converting model.gguf to float32 safetensors, once")
    assert first.kind == "folder"
    assert first.path is not None
    assert first.path.parent == gguf.cache_folder()
    assert location.path is not None
    location.path.write_bytes(b"GGUF other")
    assert local_folder(location).path != first.path


def test_failed_conversion_leaves_nothing(location: ModelLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(_location: ModelLocation, _file: Path, target: Path) -> None:
        (target / "half.safetensors").touch()
        raise OSError("disk full")

    monkeypatch.setattr(gguf, "_convert", convert)
    with pytest.raises(OSError, match="disk full"):
        local_folder(location)
    assert list(gguf.cache_folder().iterdir()) == []


def test_another_process_may_publish_first(location: ModelLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(_location: ModelLocation, _file: Path, target: Path) -> None:
        (target / "config.json").write_text("ours")
        final = target.parent / _final_name(location)
        final.mkdir()
        (final / "config.json").write_text("theirs")

    monkeypatch.setattr(gguf, "_convert", convert)
    folder = local_folder(location).path
    assert folder is not None
    assert (folder / "config.json").read_text() == "theirs"
    assert [entry.name for entry in gguf.cache_folder().iterdir()] == [folder.name]


def _final_name(location: ModelLocation) -> str:
    import hashlib

    import transformers

    assert location.path is not None
    return f"{hashlib.sha256(location.path.read_bytes()).hexdigest()[:32]}-transformers-{transformers.__version__}"


def test_package_gguf_is_not_installed(location: ModelLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "gguf" else find(name, *a))
    with pytest.raises(ModelError, match=r"needs the Python package gguf(.|\n)*pip install gguf"):
        local_folder(location)


@pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="needs gguf")
def test_file_that_is_no_gguf(location: ModelLocation) -> None:
    with pytest.raises(ModelError, match=r"GGUF file model\.gguf cannot be converted"):
        local_folder(location)
    assert list(gguf.cache_folder().iterdir()) == []
