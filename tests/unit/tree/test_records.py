"""Fast construction of frozen records, and the paused collector."""

from __future__ import annotations

import gc
from dataclasses import FrozenInstanceError, dataclass, field

import pytest

from frostline.tree import collector_paused
from frostline.tree.records import quick_maker


@dataclass(frozen=True, slots=True)
class _Point:
    x: int
    y: int = 2
    tags: list[str] = field(default_factory=list)


def test_a_quickly_made_record_is_like_any_other() -> None:
    make = quick_maker(_Point)
    made = make(1)
    assert type(made) is _Point
    assert made == _Point(1)
    assert repr(made) == repr(_Point(1))
    assert made.tags is not make(1).tags
    with pytest.raises(FrozenInstanceError):
        made.x = 3  # type: ignore[misc]
    with pytest.raises(TypeError, match="positional"):
        make(1, 2, [], 4)


def test_only_plain_frozen_dataclasses_with_slots_have_a_quick_maker() -> None:
    @dataclass(frozen=True)
    class WithoutSlots:
        x: int

    @dataclass(frozen=True, slots=True)
    class Checked:
        x: int

        def __post_init__(self) -> None:
            raise ValueError

    for record in (WithoutSlots, Checked):
        with pytest.raises(TypeError, match="no plain frozen dataclass with slots"):
            quick_maker(record)


@pytest.mark.parametrize("before", [True, False])
def test_the_collector_is_paused_and_then_as_it_was(before: bool) -> None:
    was = gc.isenabled()
    try:
        gc.enable() if before else gc.disable()
        with collector_paused():
            assert not gc.isenabled()
            with collector_paused():
                pass
            assert not gc.isenabled()
        assert gc.isenabled() is before
        with pytest.raises(ValueError, match="inside"), collector_paused():
            raise ValueError("inside")
        assert gc.isenabled() is before
    finally:
        gc.enable() if was else gc.disable()
