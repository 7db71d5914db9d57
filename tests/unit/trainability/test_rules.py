"""The `freeze_config` block: its keys, and what wrong ones are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from frostline.config import load_yaml
from frostline.errors import ConfigError
from frostline.selectors import parse_selectors
from frostline.trainability import FreezeRules, parse_freeze_config


def test_no_block_and_empty_lists_select_nothing() -> None:
    assert parse_freeze_config(None) == FreezeRules()
    assert parse_freeze_config({"freeze_modules": [], "unfreeze_modules": []}) == FreezeRules()
    assert parse_freeze_config({}) != FreezeRules()  # a legacy block: test_legacy


def test_every_key_is_read() -> None:
    rules = parse_freeze_config(
        {"freeze_modules": "a", "unfreeze_modules": [{"param": "*"}], "frozen_mode": "train", "allow_frozen_new": True}
    )
    expected = FreezeRules(parse_selectors("a"), parse_selectors([{"param": "*"}]), "train", True)
    assert rules == expected


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("bert", "freeze_config is 'bert', but it takes a mapping"),
        ({"freeze_module": "a"}, r"unknown key `freeze_module`[\s\S]*nearest: freeze_modules"),
        ({"zzz": 1}, r"unknown key `zzz`[\s\S]*keys: freeze_modules, unfreeze_modules"),
        ({"freeze_embeddings": True}, r"here it is written: freeze_modules: \[\"embed_tokens\"\]"),
        ({"freeze_lm_head": True}, r"here it is written: freeze_modules: \[\"lm_head\"\]"),
        ({"unfrozen_parameters": []}, r"here it is written: unfreeze_modules: \[\{param: "),
        ({"freeze_modules": None}, "null is not a selector"),
        ({"freeze_modules": False}, "false is not a selector"),
        ({"unfreeze_modules": 1}, "1 is not a selector"),
        ({"freeze_modules": ""}, "names nothing"),
        ({"frozen_mode": "off"}, "frozen_mode is 'off'"),
        ({"frozen_mode": ["eval"]}, "frozen_mode is"),
        ({"allow_frozen_new": "yes"}, "allow_frozen_new is 'yes'"),
    ],
)
def test_wrong_values_are_refused(config: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_freeze_config(config)


def test_all_faults_of_a_file_at_once_with_lines(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "freeze_config:\n  freeze_modules: null\n  unfreeze_modules:\n    - a\n    - {pth: b}\n"
        "  frozen_mode: of\n  allow_frozen_new: 1\n  extra: 1\n",
        encoding="utf-8",
    )
    document = load_yaml(path)
    with pytest.raises(ConfigError, match="5 problems") as caught:
        parse_freeze_config(document.data["freeze_config"], document.origins.below("freeze_config"))
    places = [str(problem.where).partition("line ")[2] for problem in caught.value.problems]
    assert places == [
        "8: freeze_config.extra",
        "2: freeze_config.freeze_modules",
        "5: freeze_config.unfreeze_modules[1]",
        "6: freeze_config.frozen_mode",
        "7: freeze_config.allow_frozen_new",
    ]
