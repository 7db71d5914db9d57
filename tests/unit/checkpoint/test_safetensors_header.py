from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from frostline.checkpoint.safetensors_header import read_header


def test_every_tensor_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    save_file({"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(1, dtype=torch.bfloat16)}, file, {"format": "pt"})
    tensors = {tensor.name: tensor for tensor in read_header(file)}
    assert (tensors["a"].dtype, tensors["a"].shape, tensors["b"].dtype) == ("F32", (2, 3), "BF16")
    stored = file.read_bytes()[tensors["a"].start : tensors["a"].stop]
    assert torch.frombuffer(bytearray(stored), dtype=torch.float32).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("header", "rest", "message"),
    [
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"123", "it is cut off: it should have"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"12345", "^it should have"),
        ({"a": {"dtype": "F32", "shape": [1]}}, b"", "no header .*data_offsets"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4]}}, b"", "no header .*IndexError"),
        ({"a": None}, b"", "no header"),
        ([], b"", "no header"),
    ],
)
def test_what_is_no_whole_file(header: object, rest: bytes, message: str, tmp_path: Path) -> None:
    text = json.dumps(header).encode()
    (tmp_path / "m.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + rest)
    with pytest.raises(ValueError, match=message):
        read_header(tmp_path / "m.safetensors")


@pytest.mark.parametrize("content", [b"", b"abc", b"version https://git-lfs.github.com/spec/v1"])
def test_what_is_no_safetensors(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="no header"):
        read_header(tmp_path / "m.safetensors")
