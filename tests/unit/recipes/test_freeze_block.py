"""The `freeze_config` block of a config file: every key is read, and every fault has its line, all at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from frostline.config import FreezeConfig, LoadedConfig, json_schema
from frostline.errors import ConfigError
from frostline.recipes.config_checks import read_config
from frostline.recipes.resuming import _changes

HEAD = "recipe: sft\nmodel: m\ndata: {train: t.jsonl}\n"


def read(tmp_path: Path, block: str, *overrides: str) -> LoadedConfig:
    path = tmp_path / "run.yaml"
    path.write_text(HEAD + block, encoding="utf-8")
    return read_config(path, overrides)


def faults(tmp_path: Path, block: str) -> list[tuple[str, str]]:
    """(line of the block and key, what) of each problem."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, block)
    places = [str(problem.where).partition("line ")[2].partition(": ")[::2] for problem in caught.value.problems]
    return [
        (f"{int(line) - 3} {key}", problem.what)
        for (line, key), problem in zip(places, caught.value.problems, strict=True)
    ]


def test_every_key_and_modifier_is_read(tmp_path: Path) -> None:
    loaded = read(
        tmp_path,
        "freeze_config:\n"
        "  freeze_modules: [{path: a, frozen_mode: train}, b]\n"
        "  unfreeze_modules: {type: Linear, within: {layers: ':2', of: x}, except: [c], optional: true,"
        " conditional: true}\n"
        "  frozen_mode: train\n"
        "  allow_frozen_new: true\n"
        "  freeze_vision_tower: false\n"
        "  freeze_audio_tower: true\n"
        "  freeze_language_model: false\n"
        "  freeze_video_embedder: true\n"
        "peft: {target_modules: [{path: a, conditional: true}]}\n",
    )
    block = loaded.config.freeze_config
    assert block is not None
    assert block.freeze_vision_tower is False
    assert block.freeze_audio_tower is True
    assert loaded.data["freeze_config"]["unfreeze_modules"]["conditional"] is True


def test_no_block_an_empty_block_and_empty_lists_are_three_things(tmp_path: Path) -> None:
    configs = [
        read(tmp_path, block)
        for block in (
            "",
            "freeze_config: {}\n",
            "freeze_config: {freeze_modules: []}\n",
            "freeze_config: {unfreeze_modules: []}\n",
        )
    ]
    assert [loaded.data.get("freeze_config") for loaded in configs] == [
        None,
        {},
        {"freeze_modules": []},
        {"unfreeze_modules": []},
    ]
    dumps = [loaded.config.model_dump(mode="json") for loaded in configs]
    for one in dumps:
        # A resume compares these: with another block it is another run.
        assert sum(not _changes(one, other) for other in dumps) == 1


def test_null_is_no_block(tmp_path: Path) -> None:
    for block in ("freeze_config:\n", "freeze_config: null\n"):
        assert faults(tmp_path, block) == [
            ("1 freeze_config", "`freeze_config` cannot be null: an empty block and no block mean different things")
        ]
    with pytest.raises(ConfigError, match=r"`freeze_config` cannot be null[\s\S]*command line"):
        read(tmp_path, "freeze_config: {}\n", "freeze_config=null")


def test_all_faults_at_once_with_their_lines(tmp_path: Path) -> None:
    block = (
        "freeze_config:\n"
        "  freeze_modules:\n"
        "    - {path: a, conditional: true}\n"
        "    - {path: a, frozen_mode: off}\n"
        "    - {path: a, within: {path: b, frozen_mode: eval}}\n"
        "    - null\n"
        "    - {path: a, glob: b}\n"
        "  unfreeze_modules:\n"
        "    - {path: a, frozen_mode: train}\n"
        "    - {path: a, conditional: yes}\n"
        "    - {path: a, except: [{path: b, conditional: true}]}\n"
        "  freeze_vision_tower: yes\n"
        "  freeze_audio_tower: null\n"
        "  freeze_language_model: 1\n"
        "  freeze_embeddings: true\n"
        "peft:\n"
        "  target_modules: [{path: a, frozen_mode: train}]\n"
        "  exclude_modules: [{path: a, conditional: true}]\n"
        "optimizer:\n"
        "  groups:\n"
        "    - {select: {path: a, conditional: true}, lr: 1.0}\n"
    )
    found = faults(tmp_path, block)
    assert sorted((place for place, _ in found), key=lambda place: int(place.partition(" ")[0])) == [
        "3 freeze_config.freeze_modules[0].conditional",
        "4 freeze_config.freeze_modules[1].frozen_mode",
        "5 freeze_config.freeze_modules[2].within.frozen_mode",
        "6 freeze_config.freeze_modules[3]",
        "7 freeze_config.freeze_modules[4]",
        "9 freeze_config.unfreeze_modules[0].frozen_mode",
        "10 freeze_config.unfreeze_modules[1].conditional",
        "11 freeze_config.unfreeze_modules[2].except[0].conditional",
        "12 freeze_config.freeze_vision_tower",
        "13 freeze_config.freeze_audio_tower",
        "14 freeze_config.freeze_language_model",
        "15 freeze_config.freeze_embeddings",
        "17 peft.target_modules[0].frozen_mode",
        "18 peft.exclude_modules[0].conditional",
        "21 optimizer.groups[0].select.conditional",
    ]
    with pytest.raises(ConfigError, match=r"write freeze_config: \{freeze_modules: \[\{type: Embedding\}\]\}"):
        read(tmp_path, block)


def test_duplicate_keys_of_a_block_and_of_a_selector_are_refused(tmp_path: Path) -> None:
    for block in (
        "freeze_config: {freeze_modules: a, freeze_modules: b}\n",
        "freeze_config: {freeze_modules: {path: a, path: b}}\n",
    ):
        with pytest.raises(ConfigError, match=r"twice|duplicate|a second time"):
            read(tmp_path, block)


@pytest.mark.parametrize("value", [None, "true", 1])
def test_the_section_refuses_in_python_too(value: Any) -> None:
    with pytest.raises(ValueError, match="freeze_audio_tower"):
        FreezeConfig.model_validate({"freeze_audio_tower": value})


def test_the_schema_offers_no_null() -> None:
    schema = json_schema()
    assert schema["properties"]["freeze_config"]["$ref"] == "#/$defs/FreezeConfig"
    keys = schema["$defs"]["FreezeConfig"]["properties"]
    assert keys["freeze_vision_tower"]["type"] == "boolean"
    assert "null" not in str(keys).replace("cannot be null", "")
    for key in keys.values():
        assert key["description"]
