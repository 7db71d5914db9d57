"""Places: a message about a row names its file and line, whatever happened to the rows since they were read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from frostline.data import LabelMap, Rows, classification_columns, deduplicate, load_source, split, take
from frostline.data.encode import encode_causal_lm, encode_classification
from frostline.errors import DataError


def places(rows: Rows) -> dict[str, str]:
    return {str(row["text"]): rows.place_of(index) for index, row in enumerate(rows)}


def test_csv_names_the_line_where_a_record_begins(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text('text,label\nfirst,x\n"two\nlines",y\n\nlast,z\n', encoding="utf-8")
    assert list(places(load_source(str(file))).values()) == [f"{file}, line {line}" for line in (2, 3, 6)]


def test_a_record_of_the_wrong_width_is_named_by_its_first_line(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text('text,label\n"a\nb",x,3\n', encoding="utf-8")
    with pytest.raises(DataError, match="line 2 has 3 fields"):
        load_source(str(file))


def test_places_stay_through_duplicates_sample_and_split(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    texts = [f"text {index // 2}" for index in range(40)]
    file.write_text("\n".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    unique, _ = deduplicate(load_source(str(file)), ["text"])
    train, validation = split(unique, 5, seed=1)
    for rows in (take(train, 7, seed=2), validation):
        # a blank line behind each, and the first of two equal rows was kept
        assert places(rows) == {
            f"text {n}": f"{file}, line {4 * n + 1}" for n in sorted(int(t[5:]) for t in rows.column("text"))
        }


def test_folders_name_the_file(tmp_path: Path) -> None:
    for name, texts in (("a.csv", ["1", "2"]), ("b.csv", []), ("c.csv", ["3"])):
        (tmp_path / name).write_text("\n".join(["text", *texts]) + "\n", encoding="utf-8")
    rows = load_source(str(tmp_path)).select([2, 0])
    assert places(rows) == {"3": f"{tmp_path / 'c.csv'}, line 2", "1": f"{tmp_path / 'a.csv'}, line 2"}
    for name in ("x/1.txt", "y/1.txt"):
        (tmp_path / "labels" / name).parent.mkdir(parents=True)
        (tmp_path / "labels" / name).write_text(name, encoding="utf-8")
    assert places(load_source(str(tmp_path / "labels")).select([1])) == {"y/1.txt": str(tmp_path / "labels/y/1.txt")}


def test_files_without_lines_count_rows(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    for name in ("a", "b"):
        parquet.write_table(pyarrow.table({"text": [f"{name}0", f"{name}1"]}), tmp_path / f"{name}.parquet")
    rows = load_source(str(tmp_path)).select([3])
    assert places(rows) == {"b1": f"{tmp_path / 'b.parquet'}, row 1"}
    assert Rows({"text": ["a", "b"]}, "org/name").select([1]).place_of(0) == "org/name, row 1"


def test_faults_of_texts_labels_and_conversations_name_the_line(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    file = tmp_path / "a.jsonl"
    good = {"text": "a", "label": "x", "messages": [{"role": "user", "content": "hi"}]}

    def rows(**bad: object) -> Rows:
        file.write_text(json.dumps(good) + "\n" + json.dumps({**good, **bad}) + "\n", encoding="utf-8")
        return load_source(str(file)).select([1, 0])

    labels = LabelMap(("x", "y"), "single_label")
    for bad, match in (
        ({"text": 3}, "line 2: column 'text' holds 3"),
        ({"label": None}, "line 2 has no label"),
        ({"label": 2.5}, r"line 2 has the label 2\.5"),
        ({"label": "z"}, r"never had: 'z' \(1 x\); first: .*line 2"),
    ):
        found = rows(**bad)
        with pytest.raises(DataError, match=match):
            encode_classification(found, tokenizer, classification_columns(found), labels, 8)
    found = rows(label="")
    with pytest.raises(DataError, match="line 2 has no label"):
        LabelMap.from_values(found.column("label"), place_of=found.place_of)
    with pytest.raises(DataError, match="line 2: messages is nothing"):
        encode_causal_lm(rows(messages=None), tokenizer, "messages")
    tokenizer.chat_template = "{{ messages[0]['content'] + messages[0]['extra'] }}"
    good["messages"][0]["extra"] = "x"  # type: ignore[index]
    with pytest.raises(DataError, match=r"cannot render .*a\.jsonl, line 2"):
        encode_causal_lm(rows(messages=[{"role": "user", "content": "hi"}]), tokenizer, "messages")
