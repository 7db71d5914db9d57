"""Digests tell bits apart, not values."""

from __future__ import annotations

import pytest
import torch

from frostline.tree import hashing, tensor_checksum, tensor_checksums, tensor_digest
from frostline.tree.hashing import _CHUNK_ELEMENTS, _WORDS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool])
def test_equal_bits_give_equal_digests_and_others_do_not(dtype: torch.dtype) -> None:
    tensor = torch.arange(6).reshape(2, 3).to(dtype)
    other = tensor.clone()
    assert tensor_digest(tensor) == tensor_digest(other)
    other.view(torch.uint8)[0, 0] ^= 1
    assert tensor_digest(tensor) != tensor_digest(other)


def test_minus_zero_differs_and_layout_does_not() -> None:
    assert tensor_digest(torch.tensor([0.0])) != tensor_digest(torch.tensor([-0.0]))
    tensor = torch.randn(4, 5)
    assert tensor_digest(tensor.t()) == tensor_digest(tensor.t().contiguous()) != tensor_digest(tensor)


def test_empty_scalar_meta_and_long_tensors() -> None:
    assert tensor_digest(torch.empty(0)) == tensor_digest(torch.empty(3, device="meta"))
    assert tensor_digest(torch.tensor(1.0)) == tensor_digest(torch.tensor([1.0]))
    long = torch.zeros(_CHUNK_ELEMENTS + 1, dtype=torch.int8)
    before = tensor_digest(long)
    long[-1] = 1
    assert tensor_digest(long) != before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool])
@pytest.mark.parametrize("count", [0, 1, 7, 64])
def test_a_checksum_sees_any_changed_element(dtype: torch.dtype, count: int) -> None:
    tensor = torch.randint(0, 2, (count,)).to(dtype)
    before = int(tensor_checksum(tensor))
    assert int(tensor_checksum(tensor.clone())) == before
    for index in range(count):
        other = tensor.clone()
        other.view(torch.uint8)[index * tensor.element_size()] ^= 1
        assert int(tensor_checksum(other)) != before


def test_a_checksum_takes_scalars_views_and_other_layouts() -> None:
    assert int(tensor_checksum(torch.tensor(3))) == int(tensor_checksum(torch.tensor([3])))
    tensor = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    assert int(tensor_checksum(tensor.t())) == int(tensor_checksum(tensor.t().contiguous()))
    assert int(tensor_checksum(tensor.flatten()[1:])) == int(tensor_checksum(tensor.flatten()[1:].clone()))


@pytest.mark.parametrize("count", [16, 2 * _WORDS, 6 * _WORDS + 5])
def test_a_checksum_sees_elements_that_change_places(count: int) -> None:
    tensor = torch.arange(count, dtype=torch.float32)
    before = int(tensor_checksum(tensor))
    for left, right in ((0, 1), (1, 3), (0, count - 1), (2, count // 2)):
        other = tensor.clone()
        other[left], other[right] = tensor[right], tensor[left]
        assert int(tensor_checksum(other)) != before, (left, right)
    assert int(tensor_checksum(tensor.flip(0))) != before
    assert int(tensor_checksum(tensor.roll(2 * _WORDS))) != before or count <= 2 * _WORDS


def test_zeros_at_the_end_count() -> None:
    assert len({int(tensor_checksum(torch.zeros(count))) for count in (0, 1, 2, 3, 4, 100)}) == 6


def test_many_checksums_at_once_leave_out_what_has_no_bits() -> None:
    tensors = {"a": torch.ones(3), "b": torch.ones(3, device="meta"), "c": torch.ones(3)}
    found = tensor_checksums(tensors)
    assert list(found) == ["a", "c"]
    assert found["a"] == found["c"] == int(tensor_checksum(torch.ones(3)))


def test_the_pieces_of_a_packed_tensor_count_by_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "local_parts", lambda tensor: (tensor,) if tensor.ndim == 1 else tuple(tensor))
    pieces = torch.arange(12.0).reshape(3, 4)
    assert int(tensor_checksum(pieces)) == int(tensor_checksum(pieces.clone()))
    assert int(tensor_checksum(pieces)) != int(tensor_checksum(pieces.flip(0)))
