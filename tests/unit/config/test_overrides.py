"""Dotted overrides: where a value goes, how it is read, and what cannot be set."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frostline.config import Key, apply_overrides, join_keys
from frostline.config.overrides import parse_override
from frostline.errors import ConfigError

_NAMES = st.text("abcxyz_", min_size=1, max_size=4)
_DATA = st.dictionaries(
    _NAMES,
    st.recursive(
        st.integers() | st.text(max_size=3),
        lambda child: st.lists(child, min_size=1, max_size=3) | st.dictionaries(_NAMES, child, min_size=1, max_size=3),
        max_leaves=10,
    ),
    min_size=1,
    max_size=3,
)


def paths_of(value: Any, keys: tuple[Key, ...] = ()) -> list[tuple[Key, ...]]:
    items: list[tuple[Key, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    return [path for key, child in items for path in [(*keys, key), *paths_of(child, (*keys, key))]]


@given(_DATA, st.data(), st.integers())
def test_an_override_changes_its_value_and_nothing_else(data: dict[str, Any], draw: st.DataObject, value: int) -> None:
    path = draw.draw(st.sampled_from(paths_of(data)))
    before = copy.deepcopy(data)
    result, keys = apply_overrides(data, [f"{join_keys(path)}={value}"])
    assert data == before
    assert keys == {path}
    expected: Any = copy.deepcopy(data)
    inner = expected
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    assert result == expected


@given(st.lists(_NAMES, min_size=1, max_size=4), st.integers())
def test_missing_mappings_are_made(names: list[str], value: int) -> None:
    result: Any = apply_overrides({}, [f"{'.'.join(names)}={value}"])[0]
    for name in names:
        assert list(result) == [name]
        result = result[name]
    assert result == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10", 10),
        ("1e-4", 1e-4),
        ("off", "off"),
        ("true", True),
        ("null", None),
        ("*.bias", "*.bias"),
        ("You are: #1", "You are: #1"),
        ("a=b", "a=b"),
        ('"10"', "10"),
        ("''", ""),
        ("[a, 1, {type: Linear}]", ["a", 1, {"type": "Linear"}]),
        ("{a: {b: off}}", {"a": {"b": "off"}}),
        ("@x", "@x"),
        ("1:8", "1:8"),
    ],
)
def test_values_are_yaml_1_2(text: str, value: object) -> None:
    assert parse_override(f"x={text}") == (("x",), value)


def test_keys() -> None:
    assert parse_override("a.b[0].c=1")[0] == ("a", "b", 0, "c")
    assert parse_override('training.class_weights."a.b"=2')[0] == ("training", "class_weights", "a.b")
    assert parse_override("a[10][2]=1")[0] == ("a", 10, 2)


def test_list_items_are_replaced_and_appended() -> None:
    data = {"f": {"m": ["a", {"type": "Linear"}]}}
    assert apply_overrides(data, ["f.m[0]=b", "f.m[1].optional=true", "f.m[2]=c"])[0] == {
        "f": {"m": ["b", {"type": "Linear", "optional": True}, "c"]}
    }
    assert apply_overrides({}, ["f.m[0]=b"])[0] == {"f": {"m": ["b"]}}
    assert apply_overrides({"f": None}, ["f.m[0].type=x"])[0] == {"f": {"m": [{"type": "x"}]}}


def test_shorthand_text_opens_into_its_mapping() -> None:
    result, _ = apply_overrides({"model": "bert"}, ["model.dtype=float64"], {("model",): "name_or_path"})
    assert result == {"model": {"name_or_path": "bert", "dtype": "float64"}}


@pytest.mark.parametrize("second", ["a.b=3", "a={b: 3}", '"a".b=2'])
def test_what_is_set_twice_is_refused(second: str) -> None:
    with pytest.raises(ConfigError, match=r"(?s)`a(\.b)?` is set again.*a\.b=2.*leave one of them out"):
        apply_overrides({"a": {"b": 1}}, ["a.b=2", second])


def test_a_whole_mapping_and_then_a_key_of_it() -> None:
    assert apply_overrides({}, ["a={b: 1, c: 2}", "a.b=3"])[0] == {"a": {"b": 3, "c": 2}}


@pytest.mark.parametrize(
    ("override", "what", "fix"),
    [
        ("training.seed", "has no `=`", "write training.seed=VALUE"),
        ("--training.seed=1", "starts with a dash", "write training.seed=1"),
        ("training.seed=", "has no value", "write training.seed=null"),
        ("a..b=1", r"`a\.\.b` is not a key", "write KEY=VALUE"),
        ("[0]=1", r"`\[0\]` is not a key", "write KEY=VALUE"),
        ("a[-1]=1", r"`a\[-1\]` is not a key", "write KEY=VALUE"),
        ("=1", "`` is not a key", "write KEY=VALUE"),
        ("recipe.x=1", "`recipe` is the plain value 'r', so `recipe.x` cannot be set", "write recipe=VALUE"),
        ("list[3]=1", r"`list` has no item \[3\]", "use an index up to 2; \\[2\\] appends"),
        ("list.x=1", "`list` is a list, and `x` is not an index", "write the index in brackets"),
        ("map[0]=1", r"`map` is a mapping, so `map\[0\]` cannot be set", "write map=VALUE"),
        ("list=[*_proj]", r"`\*_proj` is not quoted", "for a wildcard, quote it"),
        ("list=[a", "not valid YAML", "close the list"),
        ("recipe=" + "9" * 5000, "the number in the override of `recipe` is too long", "shorten it"),
    ],
)
def test_what_cannot_be_set(override: str, what: str, fix: str) -> None:
    with pytest.raises(ConfigError, match=rf"(?s){what}.*command line.*{fix}"):
        apply_overrides({"recipe": "r", "list": [1, 2], "map": {"k": 1}}, [override])


def test_all_faulty_overrides_at_once() -> None:
    with pytest.raises(ConfigError, match="2 problems"):
        apply_overrides({}, ["a", "b=1", "c="])
