"""Files: lines of every value, everything that can be wrong with a file, and writing back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frostline.config import Key, dump_yaml, load_yaml
from frostline.config.yaml_tree import parse_yaml
from frostline.errors import ConfigError

_TEXT = st.text(max_size=8) | st.sampled_from(
    ["off", "1:8", "1e-4", "017", "1_000", "*_proj", "a: b", "# x", "<<", "~", "é"]
)
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXT
_DATA = st.recursive(
    _SCALARS, lambda child: st.lists(child, max_size=4) | st.dictionaries(_TEXT, child, max_size=4), max_leaves=15
)
_TOP = st.dictionaries(_TEXT, _DATA, min_size=1, max_size=4)


def write(folder: Path, text: str | bytes, name: str = "run.yaml") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


class Emitter:
    """Writes block YAML line by line, and notes the line of each key itself: the oracle for the parser's lines."""

    def __init__(self, gaps: list[int]) -> None:
        self.out: list[str] = []
        self.lines: dict[tuple[Key, ...], int] = {}
        self._gaps = gaps

    def emit(self, value: Any, keys: tuple[Key, ...], indent: int) -> int:
        """Emits a non-empty container; returns the line of its first key or dash."""
        starts: list[int] = []
        items: list[tuple[Key, Any]] = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
        for key, child in items:
            self.out += ["# a comment", ""][: self._gaps.pop()] if self._gaps else []
            starts.append(len(self.out) + 1)
            self.lines[(*keys, key)] = starts[-1]
            head = " " * indent + (json.dumps(key) + ":" if isinstance(key, str) else "-")
            if isinstance(child, dict | list) and child:
                self.out.append(head)
                first = self.emit(child, (*keys, key), indent + 2)
                if isinstance(key, int):  # an item stands where its content begins: at its first key or dash
                    self.lines[(*keys, key)] = first
            else:
                self.out.append(f"{head} {json.dumps(child)}")
        return starts[0]


_JSON_TEXT = st.text(st.characters(codec="ascii", min_codepoint=32, max_codepoint=126), max_size=6)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | _JSON_TEXT,
    lambda child: st.lists(child, max_size=4) | st.dictionaries(_JSON_TEXT, child, max_size=4),
    max_leaves=15,
)


@given(st.dictionaries(_JSON_TEXT, _JSON, min_size=1, max_size=4), st.lists(st.integers(0, 2), max_size=12))
def test_every_value_has_its_line(data: dict[str, Any], gaps: list[int]) -> None:
    emitter = Emitter(list(gaps))
    emitter.emit(data, (), 0)
    parsed, lines = parse_yaml("\n".join(emitter.out) + "\n", "run.yaml")
    assert parsed == data
    assert lines == emitter.lines


@given(_TOP)
def test_dumped_data_is_read_back(data: dict[str, Any]) -> None:
    assert parse_yaml(dump_yaml(data), "run.yaml")[0] == data


def test_dump_keeps_the_order_and_types_of_a_config() -> None:
    data = {"recipe": "causal_lm", "a": {"x": ["off", 1, 1.5, None, True], "lr": 1e-05, "s": "1e-4"}, "e": []}
    text = dump_yaml(data)
    assert [line.partition(":")[0] for line in text.splitlines() if line[0].isalpha()] == ["recipe", "a", "e"]
    assert "- null" in text
    assert parse_yaml(text, "x")[0] == data


def test_data_and_origins(tmp_path: Path) -> None:
    path = write(tmp_path, "model: x\npeft:\n  target_modules: [query,\n    value]\n  lr: 1e-4\n0: zero\n")
    document = load_yaml(path)
    assert document.data == {"model": "x", "peft": {"target_modules": ["query", "value"], "lr": 1e-4}, "0": "zero"}
    assert str(document.origins.at("peft", "target_modules", 1)) == f"{path}, line 4: peft.target_modules[1]"
    assert document.origins.at("peft", "nothing").line == 2
    assert document.origins.at("nothing").line is None


def test_bom_and_windows_line_ends(tmp_path: Path) -> None:
    document = load_yaml(write(tmp_path, b"\xef\xbb\xbfa: 1\r\nb: 2\r\n"))
    assert document.data == {"a": 1, "b": 2}
    assert document.origins.at("b").line == 2


def test_anchors_aliases_and_merge_keys() -> None:
    text = "base: &base\n  a: 1\n  b: 2\nother:\n  <<: *base\n  b: 3\nlist: [*base]\ntwo:\n  <<: [*base, {c: 4}]\n"
    data, lines = parse_yaml(text, "x")
    assert data["other"] == {"b": 3, "a": 1}
    assert data["list"] == [{"a": 1, "b": 2}]
    assert data["two"] == {"a": 1, "b": 2, "c": 4}
    assert lines[("other",)] == 4
    assert lines[("other", "a")] == 2  # where it is written
    assert lines[("other", "b")] == 6
    assert lines[("list", 0)] == 7


def test_aliases_that_multiply_are_refused() -> None:
    levels = ["l0: &l0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    levels += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(ConfigError, match="aliases of the file multiply"):
        parse_yaml("\n".join(levels), "x")


def test_missing_file_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path, "a: 1", "bert.yaml")
    with pytest.raises(
        ConfigError, match=r"no such config file: .*brt.yaml\n.*looked in .*\n.*did you mean .*bert.yaml\?"
    ):
        load_yaml(tmp_path / "brt.yaml")
    with pytest.raises(ConfigError, match=r"possible: YAML files there: bert.yaml"):
        load_yaml(tmp_path / "quite_other.json")
    with pytest.raises(ConfigError, match=r"possible: the folder .*nowhere does not exist"):
        load_yaml(tmp_path / "nowhere" / "x.yaml")


def test_a_folder_is_no_config(tmp_path: Path) -> None:
    write(tmp_path, "a: 1", "bert.yaml")
    with pytest.raises(ConfigError, match=r"is a folder, not a config file\n(.*\n)*.*YAML files there: bert.yaml"):
        load_yaml(tmp_path)


def test_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "loop.yaml"
    path.symlink_to(path)
    with pytest.raises(ConfigError, match="cannot read the config file"):
        load_yaml(path)


def test_bad_utf8_names_line_and_offset(tmp_path: Path) -> None:
    path = write(tmp_path, b"a: 1\nb: \xff\n")
    with pytest.raises(ConfigError, match=r"byte 0xFF \(offset 8\) is not UTF-8\n.*run.yaml, line 2"):
        load_yaml(path)


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "null\n"])
def test_empty_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"the config file is empty(.*\n)*.*recipe: sequence_classification"):
        load_yaml(write(tmp_path, text))


@pytest.mark.parametrize(("text", "shape"), [("- a\n", "a list"), ("just text\n", "the value 'just text'"), ("3", "3")])
def test_top_level_must_be_a_mapping(tmp_path: Path, text: str, shape: str) -> None:
    with pytest.raises(ConfigError, match=f"the top level of the config is .*{shape}"):
        load_yaml(write(tmp_path, text))


def test_all_duplicate_keys_with_both_lines(tmp_path: Path) -> None:
    path = write(tmp_path, "recipe: a\nmodel: {x: 1,\n  x: 2}\nrecipe: b\n")
    with pytest.raises(ConfigError) as caught:
        load_yaml(path)
    assert [problem.what for problem in caught.value.problems] == [
        "`model.x` is given twice",
        "`recipe` is given twice",
    ]
    assert caught.value.problems[1].where == f"{path}, line 4: recipe"
    assert caught.value.problems[1].possible == "it is already on line 1"
    assert caught.value.problems[0].possible == "it is already on line 2"
