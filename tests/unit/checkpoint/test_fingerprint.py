from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from frostline.checkpoint import BaseIdentity, fingerprint_files, fingerprint_model
from frostline.errors import CheckpointError


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {"a": torch.randn(300, 400, generator=generator), "b": torch.randn(5, generator=generator)}


def test_splitting_order_and_folder_do_not_matter(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, tmp_path / "one.safetensors")
    (tmp_path / "x").mkdir()
    save_file({"b": tensors["b"]}, tmp_path / "x" / "1.safetensors", metadata={"format": "pt"})
    save_file({"a": tensors["a"]}, tmp_path / "x" / "2.safetensors")
    parts = sorted((tmp_path / "x").iterdir())
    assert fingerprint_files([tmp_path / "one.safetensors"]) == fingerprint_files(parts)
    assert fingerprint_files(parts) == fingerprint_files(parts[::-1])
    assert fingerprint_files(parts, full=True) == fingerprint_files([tmp_path / "one.safetensors"], full=True)


@pytest.mark.parametrize("change", ["value", "name", "dtype", "shape"])
def test_every_kind_of_other_base_differs(tmp_path: Path, tensors: dict[str, torch.Tensor], change: str) -> None:
    file = tmp_path / "m.safetensors"
    save_file(tensors, file)
    before = fingerprint_files([file])
    if change == "value":
        tensors["a"][0, 0] += 1
    elif change == "name":
        tensors["c"] = tensors.pop("b")
    elif change == "dtype":
        tensors["b"] = tensors["b"].view(torch.int32)
    else:
        tensors["a"] = tensors["a"].reshape(400, 300)
    save_file(tensors, file)
    assert fingerprint_files([file]) != before


def test_full_sees_what_sampling_may_miss(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    file = tmp_path / "m.safetensors"
    save_file(tensors, file)
    sampled, full = fingerprint_files([file]), fingerprint_files([file], full=True)
    tensors["a"].view(-1)[5000] += 1  # byte 20,000: between the first two blocks of 16 KiB
    save_file(tensors, file)
    assert fingerprint_files([file], full=True) != full
    assert fingerprint_files([file]) == sampled


def test_other_files_are_hashed_as_bytes(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes(1000))
    before = fingerprint_files([tmp_path / "m.gguf"])
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes(999) + b"1")
    assert fingerprint_files([tmp_path / "m.gguf"]) != before


@pytest.mark.parametrize("content", [b"", b"abc", b"\x80\x04pickle pickle", (10).to_bytes(8, "little") + b'{"a": {}} '])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "m.safetensors"
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"m.safetensors is not a whole safetensors file"):
        fingerprint_files([file])


def test_a_file_that_was_cut_off(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    file = tmp_path / "m.safetensors"
    save_file(tensors, file)
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match="is cut off"):
        fingerprint_files([file])


def test_models_in_memory() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2, dtype=torch.bfloat16))
    before, base = fingerprint_model(model), fingerprint_model(model, ["0.weight", "0.bias"])
    with torch.no_grad():
        model[1].weight += 1
    assert fingerprint_model(model) != before
    assert fingerprint_model(model, ["0.bias", "0.weight"]) == base
    with pytest.raises(CheckpointError, match="no such parameter"):
        fingerprint_model(model, ["2.weight"])
    with pytest.raises(CheckpointError, match="no values yet"):
        fingerprint_model(model.to("meta"))


def test_case_132_other_weights_of_the_same_shape_are_another_base() -> None:
    saved = BaseIdentity("org/a", "main", "sampled:1", "float32")
    saved.check_same(BaseIdentity("/elsewhere/a", None, "sampled:1", "bfloat16"), where="x")
    with pytest.raises(CheckpointError, match=r"another base: org/b has other weights(.|\n)*org/a at revision main"):
        saved.check_same(BaseIdentity("org/b", None, "sampled:2", "float32"), where="x")
    with pytest.raises(CheckpointError, match="another quantization"):
        saved.check_same(BaseIdentity("org/a", None, "sampled:1", quantization="nf4"), where="x")


def test_fingerprints_of_two_kinds_tell_nothing() -> None:
    saved = BaseIdentity("org/a", fingerprint="sampled:1")
    with pytest.raises(CheckpointError, match=r"cannot be compared: .*kind sampled, .*kind model-sampled(.|\n)*do:"):
        saved.check_same(BaseIdentity("org/a", fingerprint="model-sampled:1"), where="x")
    saved.check_same(BaseIdentity("org/b"), where="x")
