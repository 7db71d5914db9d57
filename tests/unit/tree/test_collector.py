"""The pause of the garbage collector leaves the process as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from frostline.tree import collector_paused


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    gc.enable()
    yield
    gc.unfreeze()
    gc.enable()


def holds(generation: int, made: list[list[int]]) -> bool:
    ids = {id(entry) for entry in gc.get_objects(generation)}
    return all(id(entry) in ids for entry in made)


def test_what_was_made_is_old_afterwards_without_a_collection() -> None:
    before = [generation["collections"] for generation in gc.get_stats()]
    with collector_paused():
        assert not gc.isenabled()
        made = [[number] for number in range(5_000)]
    assert gc.isenabled()
    assert holds(2, made)
    assert [generation["collections"] for generation in gc.get_stats()] == before
    assert gc.get_freeze_count() == 0


def test_garbage_of_the_pause_is_found_by_a_full_collection() -> None:
    gc.collect()
    with collector_paused():
        cycle: list[object] = []
        cycle.append(cycle)
        del cycle
    assert gc.collect() == 1


def test_frozen_objects_of_the_process_stay_frozen() -> None:
    gc.freeze()
    count = gc.get_freeze_count()
    with collector_paused():
        made = [[1]]
    assert gc.get_freeze_count() == count > 0
    assert holds(0, made) or holds(1, made)


def test_a_pause_within_a_pause_and_a_collector_that_is_off_change_nothing() -> None:
    gc.disable()
    with collector_paused():
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_an_error_puts_the_collector_back() -> None:
    with pytest.raises(ValueError, match="inside"), collector_paused():
        raise ValueError("inside")
    assert gc.isenabled()
