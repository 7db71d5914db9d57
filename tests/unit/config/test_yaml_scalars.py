"""YAML 1.2 core schema: what plain text in a config means."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frostline.config.yaml_scalars import resolve_plain, resolve_tagged


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"),
        ("no", "no"),
        ("yes", "yes"),
        ("1:8", "1:8"),
        ("2026-01-01", "2026-01-01"),
        ("1_000", "1_000"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("017", 17),
        ("0o17", 15),
        ("0x1F", 31),
        ("+3", 3),
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        (".5", 0.5),
        ("5.", 5.0),
        ("-1.5e3", -1500.0),
        (".inf", math.inf),
        ("-.inf", -math.inf),
        ("1e", "1e"),
        ("-", "-"),
        (".", "."),
        ("*.bias", "*.bias"),
    ],
)
def test_plain_text_is_read_by_the_core_schema(text: str, value: object) -> None:
    result = resolve_plain(text)
    assert result == value
    assert type(result) is type(value)


def test_nan_is_a_number() -> None:
    result = resolve_plain(".nan")
    assert isinstance(result, float)
    assert math.isnan(result)


@given(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False)))
def test_what_python_prints_is_read_back(number: float) -> None:
    result = resolve_plain(repr(number))
    assert result == number
    assert type(result) is type(number)


def test_a_number_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="a whole number of 5000 digits"):
        resolve_plain("9" * 5000)


def test_explicit_tags() -> None:
    prefix = "tag:yaml.org,2002:"
    assert resolve_tagged("1", f"{prefix}str") == "1"
    assert resolve_tagged("off", "!") == "off"
    as_float = resolve_tagged("1", f"{prefix}float")
    assert (as_float, type(as_float)) == (1.0, float)
    with pytest.raises(ValueError, match="`x` is no !!int"):
        resolve_tagged("x", f"{prefix}int")
    with pytest.raises(ValueError, match="`true` is no !!int"):
        resolve_tagged("true", f"{prefix}int")
    with pytest.raises(ValueError, match="the tag `!foo` is not one of"):
        resolve_tagged("x", "!foo")
