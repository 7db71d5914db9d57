"""Loading: a ten-line config reads well, and all problems come at once, each with line, nearest key and fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from frostline.config import LoadedConfig, Origins, SourceConfig, load_config
from frostline.errors import ConfigError, Problem

TEN_LINES = """\
recipe: sequence_classification
model: package:minilm_model/model
peft:
  r: 8
  target_modules: [query, value]
data:
  train: package:bbc_news/data
  validation: 400
training:
  epochs: 1
"""
BASE: dict[str, Any] = {"recipe": "sequence_classification", "model": "m", "data": {"train": "t"}}
CHAT: dict[str, Any] = BASE | {"recipe": "causal_lm"}


def load(tmp_path: Path, text: str, *overrides: str, name: str = "run.yaml", checks: Any = ()) -> LoadedConfig:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return load_config(path, overrides, checks)


def problems(*args: Any, **options: Any) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        load_config(*args, **options)
    return caught.value.problems


def problem(config: dict[str, Any], *overrides: str) -> Problem:
    found = problems(config, overrides)
    assert len(found) == 1, "\n".join(map(str, found))
    return found[0]


def test_a_ten_line_config(tmp_path: Path) -> None:
    loaded = load(tmp_path, TEN_LINES, name="bbc.yaml")
    config = loaded.config
    assert config.model.name_or_path == "package:minilm_model/model"
    assert config.peft is not None
    assert (config.peft.rank, config.peft.alpha, config.peft.target_modules) == (8, None, ["query", "value"])
    assert config.data.train.source == "package:bbc_news/data"
    assert config.data.validation == 400
    assert (config.training.epochs, config.training.max_steps, config.training.batch_size) == (1.0, None, 32)
    assert config.learning_rate == 2e-4
    assert loaded.run_folder == Path("runs/bbc")
    assert loaded.origins.at("peft", "rank").line == 4
    assert loaded.origins.at("model", "name_or_path").line == 2
    assert loaded.origins.at("peft", "target_modules", 0).short == "line 5"


def test_data_has_canonical_names_and_no_defaults(tmp_path: Path) -> None:
    assert load(tmp_path, TEN_LINES).data == {
        "recipe": "sequence_classification",
        "model": {"name_or_path": "package:minilm_model/model"},
        "peft": {"rank": 8, "target_modules": ["query", "value"]},
        "data": {"train": {"source": "package:bbc_news/data"}, "validation": 400},
        "training": {"epochs": 1},
    }


def test_a_config_without_adapters(tmp_path: Path) -> None:
    text = (
        'recipe: sft\nmodel: m\nfreeze_config:\n  freeze_modules: ["*"]\n'
        "  unfreeze_modules: [{layers: '-2:'}]\ndata: {train: t}\noutput_dir: out\n"
    )
    loaded = load(tmp_path, text)
    assert loaded.config.recipe == loaded.data["recipe"] == "causal_lm"
    assert loaded.config.peft is None
    assert loaded.config.freeze_config.unfreeze_modules == [{"layers": "-2:"}]
    assert loaded.config.learning_rate == 2e-5
    assert loaded.run_folder == Path("out")


def test_an_omitted_list_is_not_an_empty_one() -> None:
    given = load_config(BASE | {"freeze_config": {"freeze_modules": []}}).config
    assert given.freeze_config.model_fields_set == {"freeze_modules"}
    assert "freeze_config" not in load_config(BASE).config.model_fields_set


def test_values_of_yaml_1_2(tmp_path: Path) -> None:
    loaded = load(
        tmp_path, TEN_LINES + "optimizer: {lr: 1e-4, betas: [0.9, 0.98]}\nfreeze_config:\n  freeze_modules: off\n"
    )
    assert loaded.config.optimizer.lr == 1e-4
    assert loaded.config.optimizer.betas == (0.9, 0.98)
    assert loaded.config.freeze_config.freeze_modules == "off"


def test_a_mapping_is_read_like_a_file_and_not_changed() -> None:
    source: dict[str, Any] = {
        **BASE,
        "data": {"train": Path("d/train.jsonl")},
        "training": {"class_weights": {0: 1.0, 1: 2.5}},
        "optimizer": {"betas": (0.5, 0.6)},
    }
    loaded = load_config(source)
    assert loaded.config.data.train.source == str(Path("d/train.jsonl"))
    assert loaded.config.training.class_weights == {"0": 1.0, "1": 2.5}
    assert loaded.config.optimizer.betas == (0.5, 0.6)
    assert source["data"]["train"] == Path("d/train.jsonl")
    assert loaded.path is None
    assert loaded.run_folder == Path("runs/run")
    assert str(loaded.origins.at("training", "epochs")) == "training.epochs"


def test_a_mapping_with_keys_that_are_no_text() -> None:
    with pytest.raises(ConfigError, match="the key null of config is not text"):
        load_config({**BASE, None: 1})
    with pytest.raises(ConfigError, match=r"the key .*1.* of config\.x is there twice"):
        load_config({**BASE, "x": {1: 1, "1": 2}})


# ---------------------------------------------------------------------------------------------------------- overrides


def test_overrides_replace_under_any_name_and_have_no_line(tmp_path: Path) -> None:
    loaded = load(tmp_path, TEN_LINES, "peft.rank=32", "model.dtype=float64", "peft.target_modules=[key]")
    assert loaded.config.peft is not None
    assert loaded.config.peft.rank == 32
    assert loaded.config.model.dtype == "float64"
    assert loaded.config.model.name_or_path == "package:minilm_model/model"
    assert str(loaded.origins.at("peft", "rank")) == "command line: peft.rank"
    assert str(loaded.origins.at("peft", "target_modules", 0)) == "command line: peft.target_modules[0]"
    assert loaded.origins.at("data", "train").line == 7
    assert load(tmp_path, TEN_LINES.replace("r: 8", "rank: 8"), "peft.r=4").data["peft"]["rank"] == 4


def test_an_override_can_switch_a_section_off(tmp_path: Path) -> None:
    assert load(tmp_path, TEN_LINES, "peft=null").config.peft is None


def test_max_steps_over_epochs_says_how_to_remove_the_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"both `training.epochs` \(1\) and `training.max_steps` \(5\)") as caught:
        load(tmp_path, TEN_LINES, "training.max_steps=5")
    assert "training.epochs=null" in (caught.value.problems[0].fix or "")
    training = load(tmp_path, TEN_LINES, "training.max_steps=5", "training.epochs=null").config.training
    assert (training.epochs, training.max_steps) == (None, 5)


def test_faulty_overrides_are_answered_as_overrides() -> None:
    found = problem(BASE, "device=gpu")
    assert (found.where, found.fix) == ("command line: device", "write device=cuda")
    assert problem(BASE, "optimizer=sgd").fix == "if you mean its name, write optimizer.name=sgd"
    assert problem(BASE, "training.max_step=5").where == "command line: training.max_step"


# ----------------------------------------------------------------------------------------------------- all at once


def test_all_problems_of_a_file_in_its_order_with_lines(tmp_path: Path) -> None:
    text = """\
recipe: sequence_clasification
model: {name_or_path: m, dtype: bf16}
trainig: {}
peft:
  rank: 0
  dropout: 1.5
  target_modules: []
freeze_config:
  freeze_embeddings: true
  freeze_modules: [bert, null, 3]
data:
  train: {sorce: x}
  sequence_len: 512
  validation: 1.0
training:
  epochs: 1
  max_steps: "10"
  batch_size: 30
  micro_batch_size: 8
"""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    path = tmp_path / "run.yaml"
    told = [(problem.where or "").removeprefix(f"{path}, line ") for problem in caught.value.problems]
    assert told == [
        "1: recipe",
        "2: model.dtype",
        "3: trainig",
        "5: peft.rank",
        "6: peft.dropout",
        "7: peft.target_modules",
        "9: freeze_config.freeze_embeddings",
        "10: freeze_config.freeze_modules[1]",
        "10: freeze_config.freeze_modules[2]",
        "12: data.train.sorce",
        "13: data.sequence_len",
        "14: data.validation",
        "17: training.max_steps",
        "19: training.micro_batch_size",
    ]
    assert all(problem.fix for problem in caught.value.problems)
    assert str(caught.value).startswith("14 problems\n1. `recipe` cannot be")
    for jargon in ("Input should", "pydantic", "type=", "None", "True", "int_type"):
        assert jargon not in str(caught.value)


def test_checks_see_sound_data_and_join_the_error(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def check(data: dict[str, Any], origins: Origins) -> list[Problem]:
        seen.append(data)
        return [
            Problem("matches nothing", str(origins.at("peft", "target_modules", 1)), "value", "write value"),
            Problem("the same again", str(origins.at("peft", "dropout")), "value", "write value"),
        ]

    with pytest.raises(ConfigError) as caught:
        load(tmp_path, TEN_LINES.replace("  r: 8", "  dropout: 2\n  colour: red"), checks=[check])
    assert [problem.what for problem in caught.value.problems] == [
        "`peft.dropout` cannot be 2",
        "unknown key `peft.colour`",
        "matches nothing",
    ]
    assert seen[0]["peft"] == {"target_modules": ["query", "value"]}


def test_a_failing_check_alone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not this one"):
        load(
            tmp_path, TEN_LINES, checks=[lambda data, origins: [Problem("not this one", "here", "that one", "take it")]]
        )
    assert load(tmp_path, TEN_LINES, checks=[lambda data, origins: []]).config.recipe == "sequence_classification"


# -------------------------------------------------------------------------------------------------- single messages


def test_wrong_value_message_in_full(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, TEN_LINES.replace("r: 8", "r: 0"))
    assert str(caught.value) == (
        "`peft.rank` cannot be 0\n"
        f"  where:    {tmp_path}/run.yaml, line 4: peft.rank\n"
        "  possible: a whole number of at least 1; default 8\n"
        "  do:       write such a value, or remove it to get the default"
    )


@pytest.mark.parametrize(
    ("section", "value", "what", "fix"),
    [
        ("training", {"batch_size": "8"}, 'cannot be the text "8"', "write `batch_size: 8`"),
        ("training", {"batch_size": "1_000"}, 'cannot be the text "1_000"', "write `batch_size: 1000`"),
        ("training", {"batch_size": True}, "cannot be true", "such a value"),
        ("training", {"batch_size": 8.0}, r"cannot be 8\.0", "write `batch_size: 8`"),
        ("training", {"batch_size": 8.5}, r"cannot be 8\.5", "such a value"),
        ("training", {"batch_size": None}, "cannot be null", "give `training.batch_size` a value"),
        ("training", {"deterministic": "yes"}, 'cannot be the text "yes"', "write `deterministic: true`"),
        ("training", {"deterministic": 0}, "cannot be 0", "write `deterministic: false`"),
        ("training", {"precision": "fp16"}, 'cannot be the text "fp16"', "write `precision: bf16`"),
        ("training", {"precision": "float32"}, "float32", "write `precision: fp32`"),
        ("training", {"gradient_checkpointing": True}, "cannot be true", "write `gradient_checkpointing: all`"),
        ("training", {"gradient_checkpointing": False}, "cannot be false", "write `gradient_checkpointing: none`"),
        ("training", {"class_weights": {"a": "x"}}, r"class_weights\.a` cannot be the text", "such a value"),
        ("training", {"class_weights": {"a": -1.0}}, r"class_weights\.a` cannot be -1\.0", "remove the entry"),
        ("training", {"class_weights": "balancd"}, "balancd", "write `class_weights: balanced`"),
        ("training", {"max_grad_norm": float("nan")}, "cannot be nan", "such a value"),
        ("training", {"max_steps": "none"}, 'cannot be the text "none"', "write `max_steps: null`"),
        ("training", {"epochs": None}, "neither `training.epochs` nor `training.max_steps`", "write `epochs: 1`"),
        ("training", {"micro_batch_size": 5}, "5 does not divide `training.batch_size` 32", "write one of them"),
        ("model", {"name_or_path": "m", "dtype": "bf16"}, "bf16", "write `dtype: bfloat16`"),
        ("model", {"name_or_path": ""}, "`model.name_or_path` cannot be empty text", "such a value"),
        ("model", None, "`model` cannot be null", "indent its keys below `model:`"),
        ("model", {}, "`model.name_or_path` is missing", "for example: name_or_path: bert-base-uncased"),
        ("optimizer", "sgd", 'cannot be the text "sgd"', "write optimizer: {name: sgd}"),
        ("optimizer", {"name": "adamW"}, "adamW", "write `name: adamw`"),
        ("optimizer", {"betas": [0.9]}, "cannot be", "such a value"),
        ("optimizer", {"betas": [0.9, 1.5]}, r"`optimizer.betas\[1\]` cannot be 1\.5", "such a value"),
        (
            "optimizer",
            {"name": "sgd", "betas": [0.9, 0.9]},
            "`optimizer.betas` has no effect with sgd",
            "remove `betas`",
        ),
        ("optimizer", {"momentum": 0.9}, "`optimizer.momentum` has no effect with adamw", "remove `momentum`"),
        ("optimizer", {"groups": {"select": "x", "lr": 1.0}}, "cannot be the mapping", r"make it a list: groups: \[\{"),
        ("optimizer", {"groups": [{"lr": 1.0}]}, r"`optimizer.groups\[0\].select` is missing", "select: classifier"),
        ("optimizer", {"groups": [{"select": "x"}]}, "sets neither `lr` nor `weight_decay`", "add `lr: ...`"),
        ("optimizer", {"groups": [{"select": [], "lr": 1.0}]}, "`select` is an empty list", "remove the group"),
        ("optimizer", {"groups": [{"select": "x", "lr": 0}]}, r"groups\[0\].lr` cannot be 0", "such a value"),
        ("schedule", None, "`schedule` cannot be null", "or remove the line"),
        ("schedule", {"warmup": 1.0}, r"cannot be 1\.0", "such a value"),
        ("schedule", {"name": "constant", "min_lr": 1e-6}, "no effect with the constant schedule", "remove `min_lr`"),
        ("evaluation", {"every": 0}, "cannot be 0", "such a value"),
        ("evaluation", {"every": "epochs"}, "epochs", "write `every: epoch`"),
        ("evaluation", {"every": False}, "cannot be false", "write `every: never`"),
        ("evaluation", {"best": "f1"}, 'cannot be the text "f1"', "write best: {metric: f1}"),
        ("evaluation", {"best": {"metric": "f1"}}, "`evaluation.best.mode` is missing", "for example: mode: max"),
        ("evaluation", {"early_stopping": 3}, "cannot be 3", "early_stopping: {patience: ...}"),
        ("checkpoint", {"every": [1]}, r"cannot be the list \[1\]", "such a value"),
        ("checkpoint", {"keep": 0}, "cannot be 0", "such a value"),
        ("tracking", {"wandb": 3}, "cannot be 3", "such a value"),
        ("device", "cuda:x", "cuda:x", "write `device: cuda`"),
        ("output_dir", 3, "cannot be 3", 'write `output_dir: "3"`'),
        ("freeze_config", "bert", 'cannot be the text "bert"', "write freeze_config: {freeze_modules: bert}"),
        ("freeze_config", None, "cannot be null", "indent its keys"),
        ("freeze_config", {"freeze_vision_tower": "yes"}, "yes.*possible: true or false\n", "write `freeze_vision"),
        ("freeze_config", {"phases": 3}, "cannot be 3", r"write a list, such as phases: \[{at: {epoch: 1}, \.\.\.}\]"),
        ("freeze_config", {"phases": None}, "cannot be null", "each behind a dash, or remove the line"),
        ("freeze_config", {"phases": [None]}, r"phases\[0\]` cannot be null", "behind the dash, or remove the item"),
        ("freeze_config", {"phases": ["x"]}, r"phases\[0\]`", r"write a mapping, such as {at: {epoch: 1}, \.\.\.}"),
        ("freeze_config", {"phases": [{"lr": 1.0}]}, r"phases\[0\]\.at` is missing", "example: at: {epoch: 1}"),
        ("optimizer", {"groups": 3}, "cannot be 3", r"write a list, such as groups: \[{select: classifier, \.\.\.}\]"),
        ("peft", "lora", 'cannot be the text "lora"', "write peft: {method: lora}"),
        ("peft", {"dropout": 1}, "cannot be 1", "such a value"),
        ("peft", {"alpha": 0}, "cannot be 0", "such a value"),
        ("peft", {"target_modules": []}, "is an empty list, so nothing would be adapted", "remove `peft`"),
        ("peft", {"r": 8, "lora_rank": 4}, "`r: 8` and `lora_rank: 4` in `peft` mean the same", "keep one"),
        ("peft", {"rank": 8, "r": 8}, "`rank: 8` and `r: 8` in `peft` mean the same", "keep one"),
    ],
)
def test_messages(section: str, value: Any, what: str, fix: str) -> None:
    with pytest.raises(ConfigError, match=rf"(?s){what}.*  do:  .*{fix}") as caught:
        load_config(BASE | {section: value})
    assert len(caught.value.problems) == 1
    assert section in (caught.value.problems[0].where or "")


@pytest.mark.parametrize("name", ["freeze_modules", "unfreeze_modules"])
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "null"),
        (False, "false"),
        (True, "true"),
        (3, "3"),
        ("", "empty text"),
        (" ", "empty text"),
        ({}, "an empty"),
    ],
)
def test_what_a_selector_cannot_be(name: str, value: object, shown: str) -> None:
    found = problem(BASE | {"freeze_config": {name: value}})
    assert found.what.startswith(f"a selector cannot be {shown}")
    assert found.where == f"freeze_config.{name}"
    found = problem(BASE | {"freeze_config": {name: ["bert", value]}})
    assert found.what.startswith(f"a selector cannot be {shown}")
    assert found.where == f"freeze_config.{name}[1]"


def test_nested_lists_of_selectors_and_layer_numbers() -> None:
    found = problem(BASE | {"freeze_config": {"freeze_modules": [["bert"]]}})
    assert found.what == "a selector cannot be the list [bert]"
    assert "{layers: N}" in (problem(BASE | {"freeze_config": {"freeze_modules": 3}}).fix or "")


@pytest.mark.parametrize(
    ("value", "fix"),
    [
        (1.0, "write 1 for that number of examples"),
        (400.0, "write 400 for that number of examples"),
        (0, "write null to train without validation"),
        (0.0, "or null for none"),
        (-3, "write a number of at least 1"),
        (True, "such a value"),
        ("", "such a value"),
    ],
)
def test_validation_is_a_fraction_a_count_or_a_source(value: object, fix: str) -> None:
    found = problem(BASE | {"data": {"train": "t", "validation": value}})
    assert fix in (found.fix or "")
    assert "fraction" in (found.possible or "") or value == ""  # empty text is a source that is empty


def test_validation_source() -> None:
    loaded = load_config(BASE | {"data": {"train": "t", "validation": {"source": "v", "split": "dev"}}})
    assert isinstance(loaded.config.data.validation, SourceConfig)
    assert loaded.config.data.validation.split == "dev"
    found = problem(BASE | {"data": {"train": "t", "validation": {"source": "v", "splt": "dev"}}})
    assert found.fix == "rename `splt` to `split`"
    assert load_config(BASE | {"data": {"train": "t", "validation": None}}).config.data.validation is None


def test_missing_sections() -> None:
    found = problems({"modle": "m"})
    assert [problem.what for problem in found] == [
        "`recipe` is missing; given at the top level: modle",
        "`data` is missing; given at the top level: modle",
        "unknown key `modle`",
    ]
    assert problems({})[0].what == "`recipe` is missing; given at the top level: nothing"
    assert problem({**BASE, "data": {}}).fix == "add below `data`, for example: train: train.jsonl"


def test_contradictions_between_sections() -> None:
    assert "no effect with the recipe causal_lm" in problem(CHAT | {"training": {"class_weights": "balanced"}}).what
    assert "no effect with the recipe sequence_" in problem(BASE | {"data": {"train": "t", "system": "s"}}).what
    assert "no effect" in problem(BASE | {"data": {"train": "t", "columns": {"prompt": "p"}}}).what
    assert "is above `optimizer.lr`" in problem(BASE | {"optimizer": {"lr": 0.1}, "schedule": {"min_lr": 1}}).what
    without = BASE | {"data": {"train": "t", "validation": None}}
    assert "needs validation examples" in problem(without | {"evaluation": {"early_stopping": {"patience": 1}}}).what
    never = BASE | {"evaluation": {"every": "never", "early_stopping": {"patience": 1}}}
    assert "needs evaluations" in problem(never).what


def test_best_needs_evaluations() -> None:
    never = BASE | {"evaluation": {"every": "never", "best": {"metric": "loss", "mode": "min"}}}
    assert "`evaluation.best` needs evaluations" in problem(never).what


@pytest.mark.parametrize(("peft", "lr"), [({}, "2e-5"), ({"peft": {"rank": 2}}, "2e-4")])
def test_min_lr_above_the_default_rate(peft: dict[str, Any], lr: str) -> None:
    found = problem(BASE | peft | {"schedule": {"min_lr": 0.1}})
    assert f"`schedule.min_lr` 0.1 is above `optimizer.lr` {float(lr)} (the default)" in found.what


def test_a_misspelt_key_of_a_phase_is_one_problem() -> None:
    with pytest.raises(ConfigError, match=r"unknown key `freeze_config\.phases\[0\]\.freeze`") as caught:
        load_config(BASE | {"freeze_config": {"phases": [{"at": {"step": 2}, "freeze": "bert"}]}})
    assert len(caught.value.problems) == 1


def test_a_foreign_key_in_an_entry_with_a_key_of_its_own_is_renamed_there(tmp_path: Path) -> None:
    text = (
        "recipe: sequence_classification\nmodel: m\ndata: {train: d}\n"
        "freeze_config: {phases: [{at: 10, learning_rate: 0.1}]}\n"
        "optimizer: {groups: [{select: classifier, learning_rate: 0.1}]}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    fixes = [problem.fix for problem in caught.value.problems]
    assert fixes.count("rename `learning_rate` to `lr`") == 2, fixes
    assert "write a mapping, such as at: {epoch: 1} or {step: 500}" in fixes
    assert not any("optimizer: {lr" in fix for fix in fixes)
