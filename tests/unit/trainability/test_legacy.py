"""Legacy booleans: whole words of a path, an implicit freeze in legacy blocks alone, and what to write instead."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from torch import nn

from frostline import LoRA, prepare, resolve
from frostline.config import FreezeConfig, load_yaml
from frostline.errors import ConfigError, FrostlineDeprecationWarning, SelectorError
from frostline.trainability import TrainabilityPlan, parse_freeze_config
from frostline.trainability.legacy import LEGACY_KEYS

VISION = "freeze_vision_tower"
LANGUAGE = "freeze_language_model"


class Multimodal(nn.Module):
    """Parts whose names hold the words, and parts whose names hold them inside other words."""

    def __init__(self) -> None:
        super().__init__()
        names = ["vision_tower", "Visual", "image_encoder", "embed_vision", "audio_tower", "speech_projector",
                 "sound", "language_model", "text_model", "my_llm", "revision_head", "context_proj", "image_norm",
                 "encoder_image", "television", "allm", "audiobook", "patch_generator", "video_embedder"]  # fmt: skip
        for name in names:
            self.add_module(name, nn.Linear(1, 1))
        self.patch_generator.add_module("video_embedder", nn.Linear(1, 1))


class PlainLM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.ModuleDict(
            {"layers": nn.ModuleList(nn.Linear(1, 1) for _ in range(3)), "norm": nn.Linear(1, 1)}
        )
        self.lm_head = nn.Linear(1, 1)


def frozen_by(model: nn.Module, config: dict[str, Any]) -> set[str]:
    """Modules whose parameters `config` freezes; the deprecation, if there is one, is silenced."""
    return {path.rpartition(".")[0] for path in quietly(model, config).frozen}


def quietly(model: nn.Module, config: dict[str, Any] | None, **more: Any) -> TrainabilityPlan:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FrostlineDeprecationWarning)
        return resolve(model, freeze_config=config, **more)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (VISION, {"vision_tower", "Visual", "image_encoder", "embed_vision"}),
        ("freeze_audio_tower", {"audio_tower", "speech_projector", "sound"}),
        (LANGUAGE, {"language_model", "text_model", "my_llm"}),
        ("freeze_video_embedder", {"patch_generator.video_embedder"}),
    ],
)
def test_case_06_whole_words_of_a_component_are_compared(key: str, expected: set[str]) -> None:
    """Row 6: `context_proj`, `revision_head` and their kin are not touched."""
    off = {VISION: False} if key != VISION else {}
    assert frozen_by(Multimodal(), {**off, key: True}) == expected


def test_words_below_an_outer_module_and_blocks_with_a_word_are_found_once() -> None:
    model = nn.ModuleDict(
        {
            "model": nn.ModuleDict(
                {"vision_tower": nn.ModuleDict({"vision_norm": nn.Linear(1, 1)}), "a": nn.Linear(1, 1)}
            )
        }
    )
    plan = quietly(model, {})
    assert set(plan.frozen) == {f"model.vision_tower.vision_norm.{part}" for part in ("weight", "bias")}
    assert "{path: model.vision_tower}" in plan.notes[0]


# -- the implicit freeze


def test_no_block_freezes_nothing_and_an_empty_one_freezes_the_vision_tower() -> None:
    assert resolve(Multimodal()).frozen == ()
    assert "vision_tower" in frozen_by(Multimodal(), {})


@pytest.mark.parametrize("other", LEGACY_KEYS[1:])
def test_a_block_of_legacy_keys_alone_has_the_implicit_freeze(other: str) -> None:
    for value in (True, False):
        assert "vision_tower" in frozen_by(Multimodal(), {other: value})


@pytest.mark.parametrize(
    "newer",
    [{"freeze_modules": []}, {"unfreeze_modules": []}, {"frozen_mode": "eval"}, {"allow_frozen_new": False}],
)
def test_any_newer_key_opts_out_of_it(newer: dict[str, Any]) -> None:
    assert frozen_by(Multimodal(), newer) == set()
    assert frozen_by(Multimodal(), {**newer, "freeze_audio_tower": True}) == {
        "audio_tower",
        "speech_projector",
        "sound",
    }


def test_false_switches_it_off_and_never_thaws() -> None:
    model = Multimodal()
    model.vision_tower.weight.requires_grad_(False)
    plan = quietly(model, {VISION: False})
    assert plan.frozen == ("vision_tower.weight",)
    assert plan.notes == (
        "deprecated: freeze_vision_tower: false; the same with selectors: freeze_config: {freeze_modules: []}",
    )


def test_unfreeze_modules_wins_over_a_legacy_key() -> None:
    plan = quietly(Multimodal(), {"unfreeze_modules": ["embed_vision"], VISION: True})
    assert "embed_vision.weight" in plan.trainable
    assert "vision_tower.weight" in plan.frozen


# -- no match


def test_no_match_is_silent_for_the_implicit_one() -> None:
    plan = resolve(PlainLM(), freeze_config={})  # a warning would be an error here
    assert plan.frozen == ()
    assert plan.notes == ()


def test_no_match_is_a_note_for_an_explicit_true() -> None:
    plan = quietly(PlainLM(), {"freeze_audio_tower": True})
    assert plan.notes[0] == (
        "freeze_audio_tower: true (freeze_config.freeze_audio_tower) matches nothing here: no module is named "
        "audio|speech|sound"
    )


@pytest.mark.parametrize("peft", [None, LoRA()])
def test_no_language_model_is_an_error_that_offers_the_path(peft: LoRA | None) -> None:
    with pytest.raises(SelectorError, match=r"freeze_language_model: true freezes nothing") as caught:
        resolve(PlainLM(), freeze_config={LANGUAGE: True}, peft=peft)
    (problem,) = caught.value.problems
    assert problem.where == "freeze_config.freeze_language_model"
    assert problem.fix == "write freeze_modules: [{path: model}] instead"


def test_it_comes_together_with_dead_selectors() -> None:
    with pytest.raises(SelectorError, match="2 problems"):
        resolve(PlainLM(), freeze_config={LANGUAGE: True, "freeze_modules": ["mdoel"]})


def test_the_largest_part_is_offered_where_there_is_no_stack() -> None:
    model = nn.ModuleDict({"head": nn.Linear(1, 1), "body": nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1))})
    with pytest.raises(SelectorError, match=r"most likely body"):
        resolve(model, freeze_config={LANGUAGE: True})
    with pytest.raises(SelectorError, match=r"most likely the model itself"):
        resolve(nn.Linear(1, 1), freeze_config={LANGUAGE: True})


# -- what is told


CONFIGS: list[dict[str, Any]] = [
    {},
    {VISION: True},
    {VISION: False, LANGUAGE: True},
    {"freeze_audio_tower": True, "freeze_video_embedder": True},
    {"freeze_modules": ["context_proj"], "freeze_audio_tower": True},
    {"freeze_modules": {"path": "context_proj", "frozen_mode": "train"}, "freeze_audio_tower": True},
    {"freeze_modules": [{"regex": r"context_proj\.?.*"}, {"param": "*.bias"}], VISION: True},
]


@pytest.mark.parametrize("config", CONFIGS)
def test_the_deprecation_is_a_warning_and_a_note_with_selectors_that_freeze_the_same(config: dict[str, Any]) -> None:
    with pytest.warns(FrostlineDeprecationWarning, match="^deprecated: freeze_") as caught:
        plan = resolve(Multimodal(), freeze_config=config)
    (note,) = (note for note in plan.notes if note.startswith("deprecated"))
    assert str(caught[0].message) == note
    pasted = re.search(r"freeze_config: \{.*\}$", note)
    if pasted:
        block = YAML(typ="safe").load(pasted[0])["freeze_config"]
    else:
        whole = re.search(r"selectors: (.*) in place of this key and of the freeze_modules there$", note)
        assert whole
        block = YAML(typ="safe").load(whole[1])
    assert resolve(Multimodal(), freeze_config=block) == plan


def test_what_to_write_beside_other_keys_says_what_goes() -> None:
    phases = [{"at": {"step": 2}, "unfreeze_modules": ["audio_tower"]}]
    note = quietly(Multimodal(), {"freeze_audio_tower": True, "phases": phases}).notes[0]
    assert re.search(r"selectors: freeze_modules: \[.*\] in place of this key$", note)
    note = quietly(Multimodal(), {"freeze_audio_tower": False, "freeze_modules": []}).notes[0]
    assert note.endswith("freeze_audio_tower: false; the same with selectors: the block without this key")


def test_parts_that_repeat_by_number_are_one_glob() -> None:
    blocks = nn.ModuleList(nn.ModuleDict({"text_norm": nn.Linear(1, 1), "a": nn.Linear(1, 1)}) for _ in range(12))
    model = nn.ModuleDict({"blocks": blocks})
    plan = quietly(model, {LANGUAGE: True})
    assert 'freeze_modules: [{glob: "blocks.*.text_norm"}]' in plan.notes[0]
    assert resolve(model, freeze_config={"freeze_modules": [{"glob": "blocks.*.text_norm"}]}) == plan


def test_a_glob_that_would_take_more_is_not_offered() -> None:
    inner = nn.ModuleDict({"deep": nn.ModuleDict({"text_norm": nn.Linear(1, 1)}), "text_norm": nn.Linear(1, 1)})
    blocks = nn.ModuleList([nn.ModuleDict({"text_norm": nn.Linear(1, 1)}), inner])
    model = nn.ModuleDict({"blocks": blocks, "a": nn.Linear(1, 1)})
    plan = quietly(model, {LANGUAGE: True})
    block = YAML(typ="safe").load(plan.notes[0].partition("freeze_config: ")[2])
    assert resolve(model, freeze_config=block) == plan


def test_rules_name_the_key_and_its_line(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("freeze_config:\n  freeze_audio_tower: true\n", encoding="utf-8")
    document = load_yaml(path)
    plan = quietly(Multimodal(), document.data["freeze_config"], origins=document.origins)
    assert str(plan.decisions["sound.weight"].rule) == "line 2: freeze_audio_tower: true"
    assert str(plan.decisions["Visual.bias"].rule) == (
        "line 1: freeze_vision_tower: true (implied by a block of nothing else)"
    )


def test_what_a_legacy_key_freezes_gets_no_adapter() -> None:
    plan = quietly(Multimodal(), {VISION: True}, peft=LoRA(rank=1))
    assert not any("vision_tower.lora" in path for path in plan.decisions)
    assert any(note.startswith("not adapted, inside freeze_modules: 4 modules") for note in plan.notes)
    assert "text_model.lora_A.default.weight" in plan.trainable


def test_a_new_parameter_that_a_legacy_key_freezes_is_an_error_with_its_way_out() -> None:
    with pytest.raises(ConfigError, match=r"(?s)vision_tower\.weight is new.*selectors that leave it out"):
        resolve(Multimodal(), freeze_config={}, new=["vision_tower.weight"])


def test_an_implicit_freeze_that_leaves_nothing_to_train_is_an_error() -> None:
    model = nn.ModuleDict({"vision_model": nn.Linear(1, 1)})
    with pytest.raises(
        ConfigError,
        match=r"(?s)nothing trains.*2 by freeze_vision_tower: true \(implied",
    ):
        resolve(model, freeze_config={})


def test_a_layer_that_a_step_replaces_stays_frozen_by_its_words() -> None:
    model = Multimodal()
    model.add_module("vision_tower", nn.Sequential(nn.Linear(1, 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FrostlineDeprecationWarning)
        model, plan = prepare(model, freeze_config={})
    model.vision_tower = nn.Sequential(nn.Sequential(nn.Linear(1, 1)))
    bound = plan.bind(model, step="a replacement")
    assert not model.vision_tower[0][0].weight.requires_grad
    assert "freeze_vision_tower: true" in str(bound.decisions["vision_tower.0.0.weight"].rule)


# -- values


@pytest.mark.parametrize("value", [None, "true", 1, [], {}])
@pytest.mark.parametrize("key", LEGACY_KEYS)
def test_other_values_are_refused(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{key} is .*\n.*\n.*true or false"):
        parse_freeze_config({key: value})


def test_the_section_of_the_config_has_the_same_keys() -> None:
    assert [name for name in FreezeConfig.model_fields if name in LEGACY_KEYS] == list(LEGACY_KEYS)
