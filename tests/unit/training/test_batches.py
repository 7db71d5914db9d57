"""Global batches: every example once an epoch, a function of the step, split without changing their content."""

from __future__ import annotations

import math
from typing import Any

import pytest

from frostline.errors import TrainingError
from frostline.training.batches import GlobalBatches, num_steps


def build(toy: Any, count: int = 21, **arguments: Any) -> GlobalBatches:
    return GlobalBatches(toy.examples(count), toy.task(), **{"batch_size": 8, "seed": 3, **arguments})


def test_every_epoch_visits_every_example_once_in_another_order(toy: Any):
    batches = build(toy)
    assert batches.steps_per_epoch == 3
    epochs = [[index for step in range(3) for index in batches.indices(3 * epoch + step)] for epoch in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(21))
    assert epochs[0] != epochs[1]
    assert [len(batches.indices(step)) for step in range(6)] == [8, 8, 5, 8, 8, 5]


def test_the_batch_is_a_function_of_the_step(toy: Any):
    forwards, backwards = build(toy), build(toy)
    expected = [forwards.indices(step) for step in range(9)]
    assert [backwards.indices(step) for step in reversed(range(9))] == expected[::-1]


def test_another_seed_gives_another_order(toy: Any):
    assert build(toy).indices(0) != build(toy, seed=4).indices(0)


@pytest.mark.parametrize("micro", [1, 2, 4, 8])
def test_micro_batches_hold_the_global_batch(toy: Any, micro: int):
    whole, split = build(toy).at(2), build(toy, micro_batch_size=micro).at(2)
    assert len(split.micro_batches) == math.ceil(5 / micro)
    assert split.num_targets == whole.num_targets
    assert split.num_units == whole.num_units

    def rows(batch: Any) -> list[list[int]]:
        return sorted(
            ids[mask.bool()].tolist()
            for part in batch.micro_batches
            for ids, mask in zip(part["input_ids"], part["attention_mask"], strict=True)
        )

    assert rows(split) == rows(whole)


def test_the_longest_come_first_so_that_less_is_padded(toy: Any):
    widths = [part["input_ids"].shape[1] for part in build(toy, micro_batch_size=2).at(0).micro_batches]
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < widths[0]


def test_a_prepared_batch_is_the_same_batch_and_used_once(toy: Any):
    plain, ahead = build(toy), build(toy)
    ahead.prepare(1)
    expected = plain.at(1)
    for _ in range(2):
        found = ahead.at(1)
        assert found.micro_batches[0]["input_ids"].equal(expected.micro_batches[0]["input_ids"])
    ahead.prepare(2)
    assert ahead.at(1).micro_batches[0]["input_ids"].equal(expected.micro_batches[0]["input_ids"])


def test_a_batch_without_any_label_is_an_error_that_names_the_step(toy: Any):
    examples = [{"input_ids": [1, 2], "labels": [-100, -100]}] * 4
    batches = GlobalBatches(examples, toy.task(), batch_size=2)
    with pytest.raises(TrainingError, match="batch of step 1 has nothing to learn from"):
        batches.at(1)


@pytest.mark.parametrize(
    ("count", "batch", "epochs", "max_steps", "expected"),
    [
        (800, 32, 1.0, None, 25),
        (801, 32, 1.0, None, 26),
        (960, 32, 0.1, None, 3),
        (800, 32, 2.5, None, 63),
        (800, 32, None, 7, 7),
        (3, 32, 0.01, None, 1),
        (800, 32, None, None, 25),
    ],
)
def test_num_steps(count: int, batch: int, epochs: float | None, max_steps: int | None, expected: int):
    assert num_steps(count, batch, epochs=epochs, max_steps=max_steps) == expected
