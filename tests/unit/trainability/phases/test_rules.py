"""`phases` of a freeze config: what can be written, and what is refused with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from frostline.config import load_yaml
from frostline.errors import ConfigError, SelectorError
from frostline.recipes.config_checks import read_config
from frostline.selectors import parse_selectors
from frostline.trainability import parse_freeze_config
from frostline.trainability.phases.rules import PhaseStart

BLOCK = "recipe: causal_lm\nmodel: m\ndata: {train: a.jsonl}\nfreeze_config:\n  phases:\n"


def phases_of(*entries: Any) -> Any:
    return parse_freeze_config({"phases": list(entries)}).phases


def test_a_phase_is_parsed_with_its_start_its_selectors_and_its_rate() -> None:
    first, second = phases_of(
        {"at": {"epoch": 1}, "unfreeze_modules": "head", "lr": 1e-4},
        {"at": {"step": 9}, "freeze_modules": [{"param": "*.bias"}], "unfreeze_modules": []},
    )
    assert (first.at, first.lr, first.unfreeze) == (PhaseStart(epoch=1.0), 1e-4, parse_selectors("head"))
    assert (second.at, second.lr, second.unfreeze) == (PhaseStart(step=9), None, ())
    assert second.freeze == parse_selectors([{"param": "*.bias"}])
    assert phases_of({"at": {"epoch": 0.5}, "lr": 1}) == phases_of({"at": {"epoch": 0.5, "step": None}, "lr": 1.0})
    assert parse_freeze_config({"phases": []}) == parse_freeze_config({"freeze_modules": []})


@pytest.mark.parametrize(
    ("start", "steps_per_epoch", "step"),
    [
        (PhaseStart(step=7), 10, 7),
        (PhaseStart(epoch=1), 10, 10),
        (PhaseStart(epoch=0.25), 10, 3),  # 2.5 is rounded up
        (PhaseStart(epoch=0.1), 30, 3),  # not 4, by rounding error
        (PhaseStart(epoch=2.5), 4, 10),
    ],
)
def test_epochs_become_whole_steps(start: PhaseStart, steps_per_epoch: int, step: int) -> None:
    assert start.to_step(steps_per_epoch) == step


BAD: dict[str, tuple[str, int, str]] = {
    "no at": ("    - unfreeze_modules: [a]\n", 6, r"`at`|\.at` is missing"),
    "epoch and step": ("    - at: {epoch: 1, step: 2}\n      lr: 1\n", 6, "both an epoch and a step"),
    "neither": ("    - at: {}\n      lr: 1\n", 6, "neither an epoch nor a step"),
    "nulls": ("    - at: {step: null}\n      lr: 1\n", 6, "neither an epoch nor a step"),
    "a plain number": ("    - at: 5\n      lr: 1\n", 6, r"at` (cannot be|is) 5"),
    "unknown unit": ("    - at: {steps: 5}\n      lr: 1\n", 6, "steps`"),
    "negative epoch": ("    - at: {epoch: -1}\n      lr: 1\n", 6, "-1"),
    "step zero": ("    - at: {step: 0}\n      lr: 1\n", 6, "0"),
    "epoch zero": ("    - at: {epoch: 0}\n      lr: 1\n", 6, "0"),
    "half a step": ("    - at: {step: 1.5}\n      lr: 1\n", 6, r"1\.5"),
    "epoch as text": ('    - at: {epoch: "1"}\n      lr: 1\n', 6, 'text "1"'),
    "lr zero": ("    - at: {step: 1}\n      lr: 0\n", 7, "0"),
    "lr negative": ("    - at: {step: 1}\n      lr: -1e-4\n", 7, "-0.0001"),
    "lr as text": ('    - at: {step: 1}\n      lr: "high"\n', 7, "high"),
    "unknown key": ("    - at: {step: 1}\n      lr: 1\n      unfreze_modules: [a]\n", 8, "unfreze_modules"),
    "nothing": ("    - at: {step: 1}\n", 6, "changes nothing"),
    "nothing selected": ("    - at: {step: 1}\n      freeze_modules: []\n", 6, "changes nothing"),
    "malformed selector": ("    - at: {step: 1}\n      freeze_modules: [{foo: a}]\n", 7, "foo"),
    "null selector": ("    - at: {step: 1}\n      freeze_modules: null\n", 7, "null"),
    "one step twice": ("    - at: {step: 5}\n      lr: 1\n    - at: {step: 5}\n      lr: 2\n", 8, "not begin later"),
    "out of order": ("    - at: {epoch: 2}\n      lr: 1\n    - at: {epoch: 1}\n      lr: 2\n", 8, "not begin later"),
    "no mapping": ("    - 3\n", 6, "3"),
    "no list": ("    at: {step: 1}\n", 5, r"\{at: \{step: 1\}\}"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_phases_are_refused_with_their_line(name: str, tmp_path: Path) -> None:
    """By the config file's check and by the library's own, each with one problem and a fix."""
    body, line, message = BAD[name]
    file = tmp_path / "run.yaml"
    file.write_text(BLOCK + body)
    with pytest.raises(ConfigError, match=message) as caught:
        read_config(file)
    document = load_yaml(file)
    with pytest.raises((ConfigError, SelectorError), match=message) as by_library:
        parse_freeze_config(document.data["freeze_config"], document.origins.below("freeze_config"))
    for error in (caught.value, by_library.value):
        (problem,) = error.problems
        assert f"line {line}" in problem.where
        assert problem.possible
        assert problem.fix


def test_all_faults_of_all_phases_come_at_once(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    first = "    - at: {step: 0}\n      lr: 0\n"
    file.write_text(BLOCK + first + "    - lr: 1\n    - at: {step: 1}\n      typo: 1\n      lr: 1\n")
    with pytest.raises(ConfigError, match="4 problems"):
        read_config(file)
    document = load_yaml(file)
    with pytest.raises(ConfigError, match="4 problems"):
        parse_freeze_config(document.data["freeze_config"], document.origins.below("freeze_config"))
