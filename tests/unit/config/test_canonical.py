"""Canonical names: aliases and shorthands, with the lines moved along."""

from __future__ import annotations

from typing import Any

from frostline.config import Config, Origins
from frostline.config.canonical import canonical_keys, canonicalize, shorthand_keys


def test_lines_move_with_their_keys() -> None:
    origins = Origins("f", {("model",): 1, ("peft",): 2, ("peft", "r"): 3}, frozenset({("peft", "lora_alpha")}))
    data: dict[str, Any] = {"model": "m", "peft": {"r": 8, "lora_alpha": 1}, "other": 1}
    canonical, moved = canonicalize(Config, data, origins)
    assert canonical == {"model": {"name_or_path": "m"}, "peft": {"rank": 8, "alpha": 1}, "other": 1}
    assert moved.lines == {("model",): 1, ("peft",): 2, ("peft", "rank"): 3}
    assert moved.overrides == {("peft", "alpha")}
    assert data["model"] == "m"
    assert canonicalize(Config, canonical, moved) == (canonical, moved)


def test_two_names_for_one_setting_stay_as_they_are() -> None:
    data: dict[str, Any] = {"peft": {"r": 8, "rank": 4, "lora_alpha": 1}}
    assert canonicalize(Config, data, Origins())[0] == {"peft": {"r": 8, "rank": 4, "alpha": 1}}


def test_values_of_any_type_are_borne() -> None:
    for value in (None, 3, [], "x", {"r": {"r": 1}}, [{"r": 1}]):
        canonicalize(Config, {"peft": value, "optimizer": {"groups": value}, "model": value}, Origins())


def test_keys_of_overrides() -> None:
    assert canonical_keys(Config, ("peft", "r"), {}) == ("peft", "rank")
    assert canonical_keys(Config, ("optimizer", "groups", 0, "lr"), {}) == ("optimizer", "groups", 0, "lr")
    assert canonical_keys(Config, ("r", "peft"), {}) == ("r", "peft")
    other = {"peft": {"method": "mine"}}
    assert canonical_keys(Config, ("peft", "r"), other) == ("peft", "r"), "the keys of another method are its own"


def test_shorthands() -> None:
    assert shorthand_keys(Config) == {
        ("model",): "name_or_path",
        ("tokenizer",): "name_or_path",
        ("data", "train"): "source",
        ("data", "validation"): "source",
        ("data", "test"): "source",
    }
