"""The four parts of every message, and that errors survive what Python does to them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from frostline import errors
from frostline.config.origin import Origin
from frostline.errors import ConfigError, FrostlineError, PlanMismatchError, Problem, SelectorError

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, FrostlineError)]


def test_a_message_has_four_parts_and_aligned_continuation_lines() -> None:
    error = ConfigError("rank is 0", where=Origin("peft.rank", "run.yaml", 4), possible="one\ntwo", fix="try 8")
    assert str(error) == (
        "rank is 0\n  where:    run.yaml, line 4: peft.rank\n  possible: one\n            two\n  do:       try 8"
    )


@pytest.mark.parametrize("missing", ["where", "possible", "fix"])
def test_no_part_can_be_left_out(missing: str) -> None:
    parts: dict[str, Any] = {"where": "w", "possible": "p", "fix": "f"}
    del parts[missing]
    for kind in (*KINDS, Problem):
        with pytest.raises(TypeError, match=missing):
            kind("what", **parts)


def test_several_problems_are_numbered() -> None:
    error = SelectorError.from_problems([Problem("first", "here", "p", "f"), Problem("second", "there", "q", "g")])
    assert isinstance(error, SelectorError)
    assert str(error) == (
        "2 problems\n1. first\n  where:    here\n  possible: p\n  do:       f\n"
        "2. second\n  where:    there\n  possible: q\n  do:       g"
    )
    assert [problem.what for problem in error.problems] == ["first", "second"]


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("ConfigError", ValueError),
        ("SelectorError", LookupError),
        ("ArgumentError", TypeError),
        ("ModelError", ValueError),
        ("DataError", ValueError),
        ("AdapterError", ValueError),
        ("PlanMismatchError", RuntimeError),
        ("CheckpointError", RuntimeError),
        ("TrainingError", RuntimeError),
    ],
)
def test_each_class_can_be_caught_as_the_builtin_that_fits(name: str, builtin: type[Exception]) -> None:
    kind = getattr(errors, name)
    with pytest.raises(builtin, match="broken"):
        raise kind("broken", where="w", possible="p", fix="f")
    assert issubclass(kind, FrostlineError)
    assert len(KINDS) == 10


@pytest.mark.parametrize("kind", KINDS)
def test_errors_keep_class_and_problems_across_processes(kind: type[FrostlineError]) -> None:
    error = kind("what", where="w", possible="p", fix="f")
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(twin) is kind
        assert twin.problems == error.problems
        assert str(twin) == str(error)


def test_a_selector_error_is_a_config_error_and_a_plan_mismatch_is_not() -> None:
    assert issubclass(SelectorError, ConfigError)
    assert not issubclass(PlanMismatchError, ConfigError)
