"""Unknown keys: the nearest real key, the right section, and the line to write."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frostline.config import Config, load_config
from frostline.config.foreign_keys import FOREIGN_KEYS
from frostline.config.section import walk_sections
from frostline.config.unknown_keys import homes, snippet
from frostline.errors import ConfigError

BASE: dict[str, Any] = {"recipe": "sft", "model": {"name_or_path": "m"}, "data": {"train": "t"}}


@pytest.mark.parametrize(
    ("path", "possible", "fix"),
    [
        ("trainig", "did you mean `training`?", "rename `trainig` to `training`"),
        ("training.max_step", "did you mean `max_steps`?", "rename `max_step` to `max_steps`"),
        ("training.Max-Steps", "did you mean `max_steps`?", "rename `Max-Steps` to `max_steps`"),
        ("peft.lora_alfa", "did you mean `alpha`?", "rename `lora_alfa` to `alpha`"),
        ("batch_size", "`batch_size` belongs elsewhere: `training.batch_size`", "move it: training: {batch_size: 3}"),
        ("training.lr", "`lr` belongs elsewhere: `optimizer.lr`", "move it: optimizer: {lr: 3}"),
        ("target_modules", "belongs elsewhere: `peft.target_modules`", "move it: peft: {target_modules: 3}"),
        ("r", "belongs elsewhere: `peft.rank`", "move it: peft: {rank: 3}"),
        ("patience", "`evaluation.early_stopping.patience`", "move it: evaluation: {early_stopping: {patience: 3}}"),
        ("model.gradient_checkpoint", "did you mean `training.gradient_checkpointing`?", "move it: training:"),
        ("xyzzy", "the keys here are recipe, model, tokenizer", "remove `xyzzy`, or write one of these keys"),
        ("data.columns.txt", "did you mean `text`?", "rename `txt` to `text`"),
    ],
)
def test_answers(path: str, possible: str, fix: str) -> None:
    config: dict[str, Any] = {key: dict(value) if isinstance(value, dict) else value for key, value in BASE.items()}
    inner = config
    *parents, last = path.split(".")
    for key in parents:
        inner = inner.setdefault(key, {})
    inner[last] = 3
    with pytest.raises(ConfigError) as caught:
        load_config(config)
    (problem,) = caught.value.problems
    assert problem.what == f"unknown key `{path}`"
    assert possible in (problem.possible or "")
    assert fix in (problem.fix or "")


@given(st.text(max_size=12))
def test_every_unknown_key_is_refused_with_a_fix(key: str) -> None:
    if key in Config.model_fields:
        return
    with pytest.raises(ConfigError) as caught:
        load_config(BASE | {key: 1})
    (problem,) = caught.value.problems
    assert problem.fix
    assert key in FOREIGN_KEYS or problem.what.startswith("unknown key")


def test_keys_of_later_versions_are_unknown() -> None:
    with pytest.raises(ConfigError, match=r"unknown key `training\.compile`"):
        load_config(BASE | {"training": {"compile": False}})


def test_homes_and_snippets() -> None:
    assert homes("every") == [("evaluation", "every"), ("checkpoint", "every")]
    assert homes("nothing") == []
    assert snippet(("data", "max_length"), 512) == "data: {max_length: 512}"
    assert snippet(("device",), "off line") == 'device: "off line"'


def test_walk_finds_sections_in_lists() -> None:
    found = [
        keys for _, _, keys in walk_sections(Config, {"optimizer": {"groups": [{"select": "x"}, 3]}, "data": None})
    ]
    assert found == [(), ("optimizer",), ("optimizer", "groups", 0)]
