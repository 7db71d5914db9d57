"""A config under which nothing trains, or one entry is dead, is refused by the dry run and by the run alike."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize("command", ["plan", "train"])
def test_a_config_that_freezes_everything(bench: Any, command: str) -> None:
    """Rows 2 and 3: said with the count of each selector before any optimizer is built; nothing is left behind."""
    bench.config(peft=None, freeze_config={"freeze_modules": ["*"], "allow_frozen_new": True})
    error = bench.refused(command, "config.yaml").error
    assert "nothing trains" in error
    assert '"*"' in error
    assert "config.yaml, line" in error


@pytest.mark.parametrize("command", ["plan", "train"])
def test_a_slip_in_the_regex_that_should_thaw_a_part(bench: Any, command: str) -> None:
    """Row 3: an anchor in the wrong place matches nothing, so the nearest names are shown instead of a frozen run."""
    thaw = [{"regex": r"bert\.encoder\.layer\.$1"}, "classifier"]
    bench.config(peft=None, freeze_config={"freeze_modules": ["*"], "unfreeze_modules": thaw})
    outcome = bench.refused(command, "config.yaml")
    assert "matched 0 modules" in outcome.error
    assert "bert.encoder.layer" in outcome.part("possible")
