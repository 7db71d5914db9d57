"""The cache around the conversion; the conversion itself runs in the test of the example that uses a GGUF model."""

from __future__ import annotations

import importlib.util
import struct
from pathlib import Path

import pytest

from frostline.errors import ModelError
from frostline.integrations.hf_models import gguf, local_folder, resolve_location
from frostline.integrations.hf_models.gguf_header import count_elements
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


def gguf_bytes(*shapes: tuple[int, ...]) -> bytes:
    """The header of a file with values of every form and tensors of these shapes."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    values = [
        text("a") + struct.pack("<If", 6, 1.5),
        text("b") + struct.pack("<I", 8) + text("llama"),
        text("c") + struct.pack("<IIQ3H", 9, 2, 3, 1, 2, 3),
        text("d") + struct.pack("<IIQ", 9, 8, 2) + text("x") + text("yy"),
        text("e") + struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQ2B", 0, 2, 1, 2),
    ]
    tensors = [text("t") + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, 0) for shape in shapes]
    return b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(values)) + b"".join(values) + b"".join(tensors)


def test_the_size_comes_from_the_header(location: ModelLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    assert location.path is not None
    whole = gguf_bytes((1000, 2000), (500_000,))
    location.path.write_bytes(whole)
    monkeypatch.setattr(gguf, "_convert", lambda _location, _file, target: (target / "config.json").write_text("{}"))
    said: list[str] = []
    local_folder(location, say=said.append)
    assert "(about 10 MB, 10-20 s" in said[0]
    for end in range(0, len(whole), 7):  # a truncated file is for the conversion to refuse
        location.path.write_bytes(whole[:end])
        assert count_elements(location.path) is None


def test_the_conversion_draws_no_bar(capfd: pytest.CaptureFixture[str]) -> None:
    from transformers import modeling_gguf_pytorch_utils as conversion

    bar = conversion.tqdm
    with gguf._no_bar():
        assert list(conversion.tqdm([1, 2], desc="Converting")) == [1, 2]
    assert capfd.readouterr().err == ""
    assert conversion.tqdm is bar
