"""Data and models that cannot be used: each refused before anything is written."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize("command", ["plan", "train"])
def test_data_that_is_not_there_shows_what_is_near(bench: Any, command: str) -> None:
    bench.rows("train.jsonl", bench.texts(4))
    bench.config(data={"train": "trian.jsonl"})
    outcome = bench.refused(command, "config.yaml")
    assert "train.jsonl" in outcome.part("possible")
    assert "config.yaml, line" in outcome.part("where")


@pytest.mark.parametrize("content", ["", "\n\n", "[]"])
def test_empty_data(bench: Any, content: str) -> None:
    bench.write("empty.jsonl", content)
    bench.config(data={"train": "empty.jsonl"})
    assert "empty" in bench.refused("train", "config.yaml").error


def test_an_empty_folder_and_an_empty_table(bench: Any) -> None:
    (bench.folder / "texts").mkdir()
    bench.write("empty.csv", "text,label\n")
    bench.write("nothing.csv", "")
    bench.write("empty.parquet", "")
    for name in ("texts", "empty.csv", "nothing.csv", "empty.parquet"):
        bench.config(data={"train": name})
        bench.refused("train", "config.yaml")


@pytest.mark.parametrize("line", ["{", "5", '"text"', "[1]", "{'text': 'a'}"])
def test_a_line_that_is_no_object_is_named(bench: Any, line: str) -> None:
    bench.write("bad.jsonl", '{"text": "a", "label": "pos"}\n' + line + "\n")
    bench.config(data={"train": "bad.jsonl"})
    assert "line 2" in bench.refused("train", "config.yaml").error


def test_a_file_that_is_not_utf8_names_line_and_byte(bench: Any) -> None:
    rows = "".join(json.dumps(row) + "\n" for row in bench.texts(3)).encode()
    bench.write("latin.jsonl", rows + b'{"text": "caf\xe9", "label": "pos"}\n')
    bench.config(data={"train": "latin.jsonl"})
    outcome = bench.refused("train", "config.yaml")
    assert "0xe9" in outcome.error
    assert "line 4" in outcome.error
    assert "encoding_errors" in outcome.part("do")


def test_a_column_that_is_not_there(bench: Any) -> None:
    bench.config(data={"columns": {"text": "body"}})
    outcome = bench.refused("train", "config.yaml")
    assert "body" in outcome.error.split("\n")[0]
    assert "text" in outcome.part("possible")
    bench.rows("other.jsonl", [{"headline": "good film", "topic": "pos"}] * 3)
    bench.config(data={"train": "other.jsonl"})
    assert "headline" in bench.refused("train", "config.yaml").part("possible")


def test_a_label_in_validation_that_training_never_saw(bench: Any) -> None:
    bench.rows("validation.jsonl", [{"text": "fine film", "label": "neutral"}])
    bench.config(data={"validation": "validation.jsonl"})
    outcome = bench.refused("train", "config.yaml")
    assert "neutral" in outcome.error
    assert "pos" in outcome.part("possible")


@pytest.mark.parametrize("value", [None, "", 3.5, {"a": 1}, ["pos", "neg", 5]])
def test_a_label_that_is_none(bench: Any, value: object) -> None:
    rows: list[dict[str, Any]] = bench.texts(12)
    rows[5]["label"] = value
    bench.rows("train.jsonl", rows)
    bench.config(data={"train": "train.jsonl"})
    bench.refused("train", "config.yaml")


def test_only_one_label(bench: Any) -> None:
    bench.rows("train.jsonl", [{**row, "label": "pos"} for row in bench.texts(12)])
    bench.config(data={"train": "train.jsonl"})
    bench.refused("train", "config.yaml")


@pytest.mark.parametrize("value", [None, 5, ["a"]])
def test_a_text_that_is_none(bench: Any, value: object) -> None:
    rows: list[dict[str, Any]] = bench.texts(12)
    rows[7]["text"] = value
    bench.rows("train.jsonl", rows)
    bench.config(data={"train": "train.jsonl"})
    bench.refused("train", "config.yaml")


def test_a_validation_split_that_takes_everything(bench: Any) -> None:
    bench.config(data={"validation": 24})
    assert "validation" in bench.refused("train", "config.yaml").part("where")


def test_a_maximum_length_above_the_window(bench: Any) -> None:
    bench.config(data={"max_length": 4_096})
    assert "16" in bench.refused("train", "config.yaml").part("possible")


@pytest.mark.parametrize(
    "line",
    [
        '{"text": "\\ud800 lone", "label": "pos"}',
        '{"text": "a", "label": ' + "9" * 5_000 + "}",
        '{"text": ' + "[" * 100_000,
    ],
    ids=["surrogate", "digits", "depth"],
)
def test_json_that_python_cannot_hold_names_the_line(bench: Any, finished: Path, line: str) -> None:
    bench.write("bad.jsonl", '{"text": "a", "label": "pos"}\n' + line + "\n")
    assert "bad.jsonl, line 2" in bench.refused("predict", finished, "bad.jsonl").error
    bench.config(data={"train": "bad.jsonl"}, output_dir="other")
    assert "bad.jsonl, line 2" in bench.refused("train", "config.yaml").part("where")


def test_a_row_without_label_is_found_by_its_line_after_shuffle_and_split(bench: Any) -> None:
    lines = "".join(f'"{row["text"]}\n more",{row["label"]}\n' for row in bench.texts(12))
    bench.write("dirty.csv", f"text,label\n{lines}good film,\n")
    for validation in (1, 6):
        bench.config(data={"train": "dirty.csv", "validation": validation})
        assert bench.refused("train", "config.yaml").error.startswith("error: dirty.csv, line 26 has no label")


def test_a_length_that_only_special_tokens_fit_into(bench: Any) -> None:
    bench.config(data={"max_length": 2})
    outcome = bench.refused("train", "config.yaml")
    assert outcome.part("possible") == "3 at least: the tokenizer adds 2 special tokens"
    assert "data.max_length" in outcome.part("where")


# ---- models


@pytest.mark.parametrize(
    "name", ["nowhere/at/all", "./nowhere", "org/no-such-model", "package:no_such_package/model", "model.gguf", "a b"]
)
@pytest.mark.parametrize("command", ["plan", "train"])
def test_an_unknown_model(bench: Any, name: str, command: str) -> None:
    bench.config(model=name)
    outcome = bench.refused(command, "config.yaml")
    assert name.removeprefix("package:").split("/")[0] in outcome.error
    assert "config.yaml, line" in outcome.part("where")


def copied_model(bench: Any) -> Path:
    folder = bench.folder / "model"
    shutil.copytree(bench.model, folder)
    bench.config(model="model")
    return folder


def test_a_truncated_weight_file(bench: Any) -> None:
    file = copied_model(bench) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert "truncated" in bench.refused("train", "config.yaml").error


def test_a_pickle_where_safetensors_is_expected(bench: Any) -> None:
    folder = copied_model(bench)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "pickle" in bench.refused("train", "config.yaml").error
    (folder / "model.safetensors").write_bytes(pickle.dumps({"a": 1}))
    bench.refused("train", "config.yaml")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"model_type": "no_such_type"}', '{"model_type": "bert", "hidden_size": "x"}']
)
def test_a_model_config_that_cannot_be_used(bench: Any, text: str) -> None:
    (copied_model(bench) / "config.json").write_text(text, encoding="utf-8")
    bench.refused("train", "config.yaml")


def test_a_model_without_tokenizer(bench: Any) -> None:
    folder = copied_model(bench)
    for file in folder.glob("tokenizer*"):
        file.unlink()
    bench.refused("train", "config.yaml")


def test_a_broken_tokenizer(bench: Any) -> None:
    (copied_model(bench) / "tokenizer.json").write_text("{", encoding="utf-8")
    bench.refused("train", "config.yaml")


def test_weights_of_other_shapes(bench: Any) -> None:
    folder = copied_model(bench)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 48}), encoding="utf-8")
    bench.refused("train", "config.yaml")


def test_weights_that_are_not_finite_stop_the_run_and_leave_nothing(bench: Any) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    file = copied_model(bench) / "model.safetensors"
    tensors = load_file(file)
    name = "encoder.layer.0.attention.self.value.weight"
    tensors[name] = torch.full_like(tensors[name], float("nan"))
    save_file(tensors, file, metadata={"format": "pt"})
    outcome = bench.refused("train", "config.yaml")
    assert "step 0" in outcome.error
