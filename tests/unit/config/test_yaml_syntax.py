"""Syntax errors say what the line means to YAML and how to write it right."""

from __future__ import annotations

import re

import pytest

from frostline.config.yaml_tree import parse_yaml
from frostline.errors import ConfigError


@pytest.mark.parametrize("value", ["*_proj", "[q, *_proj]", "*.bias", "*norm*"])
def test_an_unquoted_star_is_explained(value: str) -> None:
    name = value.strip("[q, ]").removeprefix("*")
    pattern = rf"`\*{re.escape(name)}` is not quoted, so YAML reads it as an alias"
    with pytest.raises(ConfigError, match=pattern) as caught:
        parse_yaml(f"a: 1\npeft:\n  target_modules: {value}\n", "run.yaml")
    (problem,) = caught.value.problems
    assert (problem.where or "").startswith("run.yaml, line 3: peft.target_modules")
    assert problem.fix == f'for a wildcard, quote it: "*{name}"'


def test_all_unquoted_stars_at_once_and_the_anchors_there_are() -> None:
    with pytest.raises(ConfigError, match="2 problems") as caught:
        parse_yaml("x: &lr 1\ny:\n  - *q\n  - *k\nz: *lr\n", "run.yaml")
    assert [problem.possible for problem in caught.value.problems] == ["the only anchors above are `&lr`"] * 2


@pytest.mark.parametrize(
    ("text", "line", "meaning", "fix"),
    [
        ("a: *", 1, "an unquoted `*` starts a YAML alias", "quote a value"),
        ("a: 1\nb: &", 2, "an unquoted `&` starts a YAML anchor", "quote a value"),
        ('a: "model\\.x"', 1, "a backslash starts an escape, and `.` is not one", "use single quotes"),
        ("a:\n\tb: 1", 2, "a tab cannot indent", "indent with spaces"),
        ("a: @x", 1, "cannot start with `@` unless it is quoted", "put the value in quotes"),
        ("a: b: c", 1, "a `:` stands where no key can be", "indent keys of the same mapping"),
        ("a: - b", 1, "a `- ` stands where no list item can be", "start the list on the next line"),
        ('a: 1\nb: "x\nc: 2\n', 2, "a quote is opened here and never closed", "close the quote"),
        ("a: [1,\n  2\nb: 3\n", 1, "a `[` is opened here and never closed", "close the list"),
        ("a: {b: 1\n", 1, "a `{` is opened here and never closed", "close the mapping"),
        ("a:\n  b: 1\n c: 2\n", 3, "this line belongs to no mapping", "same number of spaces"),
        ("- a\nb: 1", 2, "a list and a mapping are mixed", "indent the list below its key"),
        ("{a: b}}", 1, "something follows the end", "one closing bracket too many"),
    ],
)
def test_syntax_errors_in_plain_words(text: str, line: int, meaning: str, fix: str) -> None:
    with pytest.raises(ConfigError, match="not valid YAML") as caught:
        parse_yaml(text, "run.yaml")
    problem = caught.value.problems[-1]
    assert problem.where == f"run.yaml, line {line}"
    assert meaning in (problem.possible or "")
    assert fix in (problem.fix or "")


def test_the_line_is_shown() -> None:
    with pytest.raises(ConfigError, match="not valid YAML: model: a: b\n"):
        parse_yaml("x: 1\n  \nmodel: a: b\n", "run.yaml")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a: \x01", r"invalid character U\+0001"),
        ("a: &x [*x]", r"`\*x` refers to the value that it is part of"),
        ("<<: 3", "`<<` merges something that is not a mapping"),
        ("a: !foo b", "the tag `!foo` is not one of"),
        ("a: !foo [b]", "the tag `!foo` is not known"),
        ("a: !!int x", "`x` is no !!int"),
        ("a: 1\n---\nb: 1", "a second document starts here"),
        ("%YAML 1.1\n---\na: 1", r"the file declares YAML 1\.1"),
        ("? [a]\n: b", "a key is a list"),
        ("a: " + "[" * 3000, "nested more than 50 deep"),
        ("a: " + "9" * 5000, "a whole number of 5000 digits"),
    ],
)
def test_what_a_config_cannot_hold(text: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        parse_yaml(text, "run.yaml")


@pytest.mark.parametrize(("text", "is_closed"), [("a:\n  b: 1\n c: 2\n", False), ("a:\n  b: 'x' y\n", True)])
def test_a_closing_quote_is_spoken_of_only_where_one_is(text: str, is_closed: bool) -> None:
    with pytest.raises(ConfigError, match="not valid YAML") as caught:
        parse_yaml(text, "run.yaml")
    problem = caught.value.problems[-1]
    assert ("closed value" in problem.possible) is is_closed
    assert ("closing quote" in problem.fix) is is_closed
