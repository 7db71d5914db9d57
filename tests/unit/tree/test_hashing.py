"""Checksums tell bits apart, not values."""

from __future__ import annotations

import pytest
import torch

from frostline.tree import hashing, tensor_checksum, tensor_checksums
from frostline.tree.hashing import _WORDS, _draw


def naive(words: torch.Tensor, size: int) -> int:
    """The sum as written down: weights by place in a chunk, the chunks by their place, modulo 2^64."""
    chunks = words.tolist()
    inner, outer = (_draw(_WORDS, torch.device("cpu"), salt).tolist() for salt in (2, 3))
    sums = [
        sum(value * inner[place] for place, value in enumerate(chunks[start : start + _WORDS]))
        for start in range(0, len(chunks), _WORDS)
    ]
    total = sum(value * outer[place] for place, value in enumerate(sums)) if len(sums) > 1 else sum(sums)
    total = (total + size) % 2**64
    return total - 2**64 if total >= 2**63 else total


@pytest.mark.parametrize("count", [1, 5, _WORDS, _WORDS + 1, 3 * _WORDS])
def test_a_checksum_is_the_sum_as_written_down(count: int) -> None:
    words = torch.randint(-(2**62), 2**62, (count,), generator=torch.Generator().manual_seed(0))
    assert int(tensor_checksum(words)) == naive(words, 8 * count)


def test_the_scheme_has_not_changed() -> None:
    """Checkpoints hold digests of these sums: another number here needs another name of the scheme."""
    assert int(tensor_checksum(torch.arange(3 * _WORDS + 7, dtype=torch.int32))) == -6313358767085229365
    assert int(tensor_checksum(torch.tensor([1.5, -0.0, 2.0]))) == -6556803788407294004


def test_minus_zero_is_another_number() -> None:
    assert int(tensor_checksum(torch.tensor([0.0]))) != int(tensor_checksum(torch.tensor([-0.0])))


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


def test_threads_give_the_same_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {str(size): torch.randn(size) for size in (1, 5, 1000, 100_000)}
    alone = {name: int(tensor_checksum(tensor)) for name, tensor in tensors.items()}
    monkeypatch.setattr(hashing, "_WORTH_THREADS", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert tensor_checksums(tensors) == alone


def test_the_pieces_of_a_packed_tensor_count_by_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "local_parts", lambda tensor: (tensor,) if tensor.ndim == 1 else tuple(tensor))
    pieces = torch.arange(12.0).reshape(3, 4)
    assert int(tensor_checksum(pieces)) == int(tensor_checksum(pieces.clone()))
    assert int(tensor_checksum(pieces)) != int(tensor_checksum(pieces.flip(0)))
