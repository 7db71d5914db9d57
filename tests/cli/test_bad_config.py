"""Configs that cannot be used: each refused with the four parts, status 2, and nothing left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

COMMANDS = ("plan", "train")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_file_shows_what_is_near(bench: Any, command: str) -> None:
    bench.config("lora.yaml")
    outcome = bench.refused(command, "lroa.yaml")
    assert "lroa.yaml" in outcome.error.split("\n")[0]
    assert "lora.yaml" in outcome.part("possible")


def test_a_folder_is_no_config(bench: Any) -> None:
    assert "folder" in bench.refused("plan", bench.folder).error


def test_a_syntax_error_names_its_line(bench: Any) -> None:
    bench.write("c.yaml", "recipe: causal_lm\nmodel: [a\ndata: {train: x}\n")
    assert "c.yaml, line" in bench.refused("train", "c.yaml").part("where")


def test_a_tab_names_its_line(bench: Any) -> None:
    bench.write("c.yaml", "recipe: causal_lm\nmodel:\n\tname_or_path: a\n")
    assert "line 3" in bench.refused("train", "c.yaml").part("where")


def test_a_duplicate_key_names_both_lines(bench: Any) -> None:
    path = bench.config()
    text = path.read_text(encoding="utf-8")
    bench.write("c.yaml", text + "recipe: causal_lm\n")
    error = bench.refused("train", "c.yaml").error
    assert f"line {len(text.splitlines()) + 1}" in error
    assert "line 1" in error


def test_an_unquoted_star_is_explained(bench: Any) -> None:
    path = bench.config(peft={"target_modules": ["STAR"]})
    text = path.read_text(encoding="utf-8")
    bench.write("c.yaml", text.replace("STAR", "*_proj"))
    outcome = bench.refused("train", "c.yaml")
    assert '"*_proj"' in outcome.part("do")
    assert "line" in outcome.part("where")


@pytest.mark.parametrize("content", ["", "# nothing\n", "just text\n", "- a\n- b\n", "---\na: 1\n---\nb: 2\n"])
def test_a_file_that_is_no_mapping(bench: Any, content: str) -> None:
    bench.write("c.yaml", content)
    bench.refused("plan", "c.yaml")


def test_a_config_that_is_not_utf8_names_the_byte(bench: Any) -> None:
    bench.write("c.yaml", "recipe: causal_lm # caf\xe9\n".encode("latin-1"))
    assert "UTF-8" in bench.refused("plan", "c.yaml").error


def test_a_binary_file_is_no_config(bench: Any) -> None:
    bench.write("c.yaml", b"\x00\x01\x02PK\x03\x04")
    bench.refused("plan", "c.yaml")


@pytest.mark.parametrize(
    ("section", "key", "near"),
    [("training", "max_stesp", "max_steps"), ("peft", "target_module", "target_modules"), ("data", "trian", "train")],
)
def test_an_unknown_key_shows_the_nearest(bench: Any, section: str, key: str, near: str) -> None:
    bench.config(**{section: {key: 1}})
    outcome = bench.refused("train", "config.yaml")
    assert key in outcome.error.split("\n")[0]
    assert near in outcome.part("possible")
    assert "config.yaml, line" in outcome.part("where")


def test_a_key_of_another_tool_is_answered_with_ours(bench: Any) -> None:
    bench.config(per_device_train_batch_size=8)
    assert "batch_size" in bench.refused("train", "config.yaml").error


BAD_VALUES = [
    ("training", "max_steps", "many"),
    ("training", "max_steps", 2.5),
    ("training", "max_steps", True),
    ("training", "max_steps", 0),
    ("training", "max_steps", -3),
    ("training", "batch_size", 0),
    ("training", "batch_size", "8"),
    ("training", "micro_batch_size", 3),
    ("training", "precision", "fp8"),
    ("training", "max_grad_norm", -1.0),
    ("training", "max_grad_norm", float("nan")),
    ("training", "label_smoothing", 1.5),
    ("training", "seed", -1),
    ("training", "seed", 2**70),
    ("optimizer", "lr", -1e-3),
    ("optimizer", "lr", float("nan")),
    ("optimizer", "lr", float("inf")),
    ("optimizer", "name", "adamwx"),
    ("optimizer", "betas", [0.9]),
    ("optimizer", "betas", [0.9, 1.5]),
    ("optimizer", "eps", float("nan")),
    ("optimizer", "weight_decay", -0.1),
    ("peft", "rank", 0),
    ("peft", "rank", -8),
    ("peft", "dropout", 1.5),
    ("peft", "dropout", float("nan")),
    ("peft", "alpha", float("inf")),
    ("peft", "target_modules", []),
    ("peft", "target_modules", ""),
    ("peft", "target_modules", None),
    ("peft", "target_modules", [5]),
    ("peft", "method", "dorra"),
    ("data", "max_length", 0),
    ("data", "max_examples", 0),
    ("data", "validation", 1.5),
    ("data", "validation", -1),
    ("data", "validation", float("nan")),
    ("data", "train", ""),
    ("data", "train", ["a", "b"]),
    ("data", "columns", {"text": 5}),
    ("schedule", "warmup", -1),
    ("schedule", "warmup", 1.5),
    ("schedule", "warmup", float("nan")),
    ("schedule", "name", "cosin"),
    ("evaluation", "every", 0),
    ("evaluation", "best", {"metric": "accuracy", "mode": "biggest"}),
    ("evaluation", "early_stopping", {"patience": 0}),
    ("checkpoint", "keep", 0),
    ("checkpoint", "every", "sometimes"),
]


@pytest.mark.parametrize(("section", "key", "value"), BAD_VALUES, ids=lambda value: str(value)[:24])
def test_a_value_that_is_not_possible(bench: Any, section: str, key: str, value: object) -> None:
    sections: dict[str, Any] = {section: {key: value}}
    bench.config(**sections)
    outcome = bench.refused("train", "config.yaml")
    where = outcome.part("where")
    assert "config.yaml, line" in where
    assert section in where, where


@pytest.mark.parametrize(
    "change",
    [
        {"recipe": "sequence_clasification"},
        {"recipe": None},
        {"model": None},
        {"model": ""},
        {"data": None},
        {"data": "train.jsonl"},
        {"peft": "lora"},
        {"peft": 8},
        {"device": "cuda:99"},
        {"device": "tpu"},
        {"output_dir": ""},
        {"output_dir": 5},
        {"training": {"epochs": 1}},
        {"freeze_config": {"freeze_modules": False}},
        {"freeze_config": {"freeze_modules": [""]}},
        {"freeze_config": {"freeze_modules": [{"regex": "("}]}},
        {"freeze_config": {"freeze_modules": [{"layers": "a:b"}]}},
    ],
    ids=str,
)
def test_a_section_that_is_not_possible(bench: Any, change: dict[str, Any]) -> None:
    bench.config(**change)
    bench.refused("train", "config.yaml")


def test_a_model_that_does_not_fit_into_memory(bench: Any) -> None:
    bench.config(peft={"rank": 10**14})
    outcome = bench.refused("train", "config.yaml")
    assert "memory" in outcome.error.split("\n")[0]
    assert "micro_batch_size" in outcome.part("do")


def test_problems_are_reported_together_with_their_lines(bench: Any) -> None:
    text = (
        "recipe: sequence_classification\n"
        f"model: '{bench.model}'\n"
        "peft: {rank: 0, dropout: 1.5, target_modules: []}\n"
        f"data: {{train: '{bench.data}'}}\n"
        "training: {max_stesp: 3}\n"
        "freeze_config:\n"
        "  freeze_modules: [{regexx: a}]\n"
        "learning_rate: 1e-3\n"
    )
    bench.write("many.yaml", text)
    error = bench.refused("train", "many.yaml", num_problems=6).error
    for line in (3, 5, 7, 8):
        assert f"many.yaml, line {line}" in error
    assert error.count("line 3") == 3


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("training.max_stesp=3", "max_steps"),
        ("training.max_steps", "="),
        ("training.max_steps=", "max_steps"),
        ("training.max_steps=[1", "max_steps"),
        ("=3", "key"),
        ("peft.target_modules[7]=x", "target_modules"),
        ("training..max_steps=3", "max_steps"),
        ("training.max_steps.deep=3", "max_steps"),
    ],
)
def test_an_override_that_is_not_possible(bench: Any, override: str, word: str) -> None:
    bench.config()
    outcome = bench.refused("train", "config.yaml", override)
    assert word in outcome.error


def test_a_selector_that_matches_nothing_shows_what_is_near(bench: Any) -> None:
    bench.config(peft={"target_modules": ["quary"]})
    outcome = bench.refused("train", "config.yaml")
    assert "query" in outcome.part("possible")
    assert "config.yaml, line" in outcome.part("where")


def test_a_freeze_selector_that_matches_nothing(bench: Any) -> None:
    bench.config(peft=None, freeze_config={"freeze_modules": ["bert.embedings"]})
    assert "bert.embeddings" in bench.refused("train", "config.yaml").part("possible")


def test_a_frozen_new_head(bench: Any) -> None:
    bench.config(peft=None, freeze_config={"freeze_modules": ["classifier"]})
    outcome = bench.refused("train", "config.yaml")
    assert "classifier" in outcome.error
    assert "allow_frozen_new" in outcome.error


def test_nothing_that_trains(bench: Any) -> None:
    bench.config(peft=None, freeze_config={"freeze_modules": ["/"], "allow_frozen_new": True})
    bench.refused("train", "config.yaml")


def test_an_optimizer_group_that_selects_nothing_that_trains(bench: Any) -> None:
    bench.config(optimizer={"groups": [{"select": "bert.embeddings", "lr": 1e-4}]})
    assert "groups" in bench.refused("train", "config.yaml").part("where")


def test_a_warmup_longer_than_the_run_is_found_before_the_run(bench: Any) -> None:
    bench.config(schedule={"warmup": 50})
    assert "warmup" in bench.refused("train", "config.yaml").error


def test_a_metric_that_the_recipe_does_not_have(bench: Any) -> None:
    bench.config(evaluation={"best": {"metric": "acuracy", "mode": "max"}})
    outcome = bench.refused("train", "config.yaml")
    assert "accuracy" in outcome.part("possible")


def test_a_very_long_name_is_cut_or_shown_but_never_a_traceback(bench: Any) -> None:
    long = "x" * 5_000
    for change in ({"model": long}, {"data": {"train": f"{long}.jsonl"}}, {"output_dir": long}):
        bench.config(**change)
        bench.refused("train", "config.yaml")
    bench.refused("plan", f"{long}.yaml")
    bench.refused("evaluate", long)
    bench.refused("inspect", long)


def test_a_null_byte_in_a_path(bench: Any) -> None:
    for change in ({"model": "a\0b"}, {"data": {"train": "a\0b.jsonl"}}, {"output_dir": "a\0b"}):
        bench.config(**change)
        bench.refused("train", "config.yaml")


def test_paths_with_spaces_and_letters_of_other_scripts_work(bench: Any) -> None:
    folder = Path("mit Leerzeichen – 模型")
    bench.rows(str(folder / "données.jsonl"), bench.texts(24))
    bench.config(
        str(folder / "lauf 1.yaml"), data={"train": str(folder / "données.jsonl")}, output_dir=str(folder / "läuft")
    )
    outcome = bench.run("train", folder / "lauf 1.yaml")
    assert outcome.status == 0, outcome.err
    assert (folder / "läuft" / "adapter" / "adapter_model.safetensors").is_file()
    assert bench.run("evaluate", folder / "läuft").status == 0


def test_debug_shows_the_traceback(bench: Any) -> None:
    from frostline.errors import ConfigError

    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        bench.run("plan", "nowhere.yaml", "--debug")


@pytest.mark.parametrize(
    ("text", "what", "possible"),
    [
        ("dataloader_num_workers: 2", "`dataloader_num_workers` is a key of", "nothing needs to be set"),
        ("load_best_model_at_end: true", "`load_best_model_at_end` is a key of", "nothing needs to be set"),
        ("data: &data {train: *data}", "`*data` refers to the value that it is part of", "values that have ended"),
        ("data: " + "[" * 60 + "]" * 60, "nested more than 50 deep", "at most 50 levels"),
        ("training: {seed: !!int ten}", "not a valid value: `ten` is no !!int", "numbers"),
    ],
)
def test_messages_that_have_no_value_of_ours_to_offer_have_four_parts(
    bench: Any, text: str, what: str, possible: str
) -> None:
    data = "" if text.startswith("data:") else "data: {train: t.jsonl}\n"
    bench.write("config.yaml", f"recipe: causal_lm\nmodel: some/model\n{data}{text}\n")
    outcome = bench.refused("plan", "config.yaml")
    assert what in outcome.error
    assert possible in outcome.part("possible")
