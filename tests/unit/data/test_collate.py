"""Collate: padding, label shapes, and the order of epochs."""

from __future__ import annotations

import pytest
import torch

from frostline.data.collate import EpochOrder, pad_batch


def test_token_labels_are_padded_on_either_side() -> None:
    examples = [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [8], "labels": [8]}]
    right = pad_batch(examples, 0)
    assert right["input_ids"].tolist() == [[5, 6, 7], [8, 0, 0]]
    assert right["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert right["labels"].tolist() == [[-100, 6, 7], [8, -100, -100]]
    left = pad_batch(examples, 0, padding_side="left")
    assert left["input_ids"].tolist() == [[5, 6, 7], [0, 0, 8]]
    assert left["attention_mask"].tolist() == [[1, 1, 1], [0, 0, 1]]
    assert left["labels"].tolist() == [[-100, 6, 7], [-100, -100, 8]]
    assert examples[1] == {"input_ids": [8], "labels": [8]}


@pytest.mark.parametrize(
    ("labels", "dtype", "shape"),
    [
        ([1, 0], torch.int64, (2,)),
        ([0.5, 1.5], torch.float32, (2,)),
        ([[0.0, 1.0], [1.0, 1.0]], torch.float32, (2, 2)),
    ],
)
def test_labels_of_examples(labels: list[object], dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    examples = [{"input_ids": [1, 2], "labels": labels[0]}, {"input_ids": [3], "labels": labels[1]}]
    batch = pad_batch(examples, 9)
    assert batch["labels"].dtype == dtype
    assert batch["labels"].shape == shape
    assert batch["labels"].tolist() == labels


def test_given_masks_and_token_types_are_kept() -> None:
    examples = [
        {"input_ids": [1, 2], "attention_mask": [0, 1], "token_type_ids": [0, 1]},
        {"input_ids": [3], "attention_mask": [1], "token_type_ids": [1]},
    ]
    batch = pad_batch(examples, 9)
    assert batch["attention_mask"].tolist() == [[0, 1], [1, 0]]
    assert batch["token_type_ids"].tolist() == [[0, 1], [1, 0]]
    assert "labels" not in batch
    with pytest.raises(ValueError, match="at least one example"):
        pad_batch([], 0)


def test_epoch_order_is_a_function_of_seed_and_epoch() -> None:
    order = EpochOrder(50, seed=1)
    assert sorted(order.order(0)) == list(range(50))
    assert order.order(3) == EpochOrder(50, seed=1).order(3)
    assert order.order(0) != order.order(1)
    assert order.order(0) != EpochOrder(50, seed=2).order(0)
    # (seed, epoch) are mixed, not added: seed 1 epoch 1 is not seed 2 epoch 0
    assert order.order(1) != EpochOrder(50, seed=2).order(0)


def test_epoch_order_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    EpochOrder(10, seed=0).order(0)
    assert torch.equal(torch.get_rng_state(), before)


def test_epoch_order_is_pinned() -> None:
    """A run of today must be resumable after an upgrade."""
    assert EpochOrder(8, seed=0).order(0) == [7, 4, 1, 6, 0, 5, 2, 3]
