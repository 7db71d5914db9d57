"""Which steps are due."""

from __future__ import annotations

import pytest

from frostline.training.cadence import is_due


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (4, [4, 8, 10]),
        (100, [10]),
        ("epoch", [3, 6, 9, 10]),
        ("end", [10]),
        ("never", []),
    ],
)
def test_is_due(every: int | str, expected: list[int]):
    found = [done for done in range(1, 11) if is_due(every, done, steps_per_epoch=3, total_steps=10)]
    assert found == expected
