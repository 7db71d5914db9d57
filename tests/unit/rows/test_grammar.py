"""`rows` of a `param` selector: what can be written, where, and what is refused with which line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import frostline as fl
from frostline.errors import ConfigError, SelectorError
from frostline.recipes.config_checks import read_config
from frostline.selectors import OF_ROWS, parse_selector, parse_selectors

from .conftest import VOCABULARY, rows_config, table

LAST = VOCABULARY - 1


def rows(value: Any) -> tuple[int, ...] | None:
    """Which rows of the table train with `rows: value`."""
    plan = fl.resolve(table(tied=False), freeze_config=rows_config(value))
    return plan.decisions["embed_tokens.trained_rows"].rows


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("17:", (17, 18, LAST)),
        ("-2:", (18, LAST)),
        (":2", (0, 1)),
        ("::9", (0, 9, 18)),
        ("10:4:-3", (7, 10)),
        (4, (4,)),
        (-1, (LAST,)),
        ("-1", (LAST,)),
        ([3, 0, -1, 3], (0, 3, LAST)),
        ((2, 1), (1, 2)),
    ],
    ids=str,
)
def test_positions_are_those_of_python(value: Any, expected: tuple[int, ...]) -> None:
    assert rows(value) == expected


@pytest.mark.parametrize("value", [True, False, None, 1.0, [], [1, 2.0], [True], "x", "", "1:2:0", "1:2:3:4", {"a": 1}])
def test_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(SelectorError, match="`rows` is") as caught:
        parse_selectors([{"param": "*.weight", "rows": value}], also=OF_ROWS)
    assert caught.value.problems[0].where.endswith("[0].rows")


@pytest.mark.parametrize("value", ["21:", ":21", "-21:", 20, [0, -21]], ids=str)
def test_a_bound_outside_the_table_is_an_error(value: Any) -> None:
    with pytest.raises(SelectorError, match=r"outside the table\n.*\n.*embed_tokens.weight has 20 rows: 0 to 19"):
        rows(value)


def test_no_row_is_an_error() -> None:
    with pytest.raises(SelectorError, match='the slice "20:" is empty'):
        rows("20:")


def test_rows_are_no_option_of_other_kinds() -> None:
    with pytest.raises(SelectorError, match="unknown key `rows` in a `glob` selector"):
        parse_selectors([{"glob": "*", "rows": 1}], also=OF_ROWS)


def test_rows_are_printed() -> None:
    assert str(parse_selectors({"param": "a.weight", "rows": "5:"}, also=OF_ROWS)[0]) == 'param "a.weight" rows "5:"'
    assert str(parse_selectors({"param": "a.weight", "rows": [1, 2]}, also=OF_ROWS)[0]) == 'param "a.weight" rows 1, 2'


SELECTOR = {"param": "embed_tokens.weight", "rows": "5:"}


def test_within_except_and_single_selectors_take_no_rows() -> None:
    with pytest.raises(SelectorError, match="selects rows, which is not possible here"):
        parse_selectors({"glob": "*", "except": [SELECTOR]}, also=OF_ROWS)
    with pytest.raises(SelectorError, match="`within` needs modules"):
        parse_selectors({"glob": "*", "within": SELECTOR}, also=OF_ROWS)
    with pytest.raises(SelectorError, match="selects rows"):
        parse_selector(SELECTOR)


@pytest.mark.parametrize("key", ["target_modules", "exclude_modules"])
def test_adapter_lists_take_no_rows(key: str) -> None:
    with pytest.raises(SelectorError, match="selects rows, which is not possible here"):
        fl.resolve(table(), peft=fl.LoRA(**{"target_modules": ["mix"], key: [SELECTOR]}))


CONFIG = """\
recipe: causal_lm
model: somewhere
data: {train: pairs.jsonl}
freeze_config:
  freeze_modules: ["*"]
  unfreeze_modules:
    - param: "*.embed_tokens.weight"
      rows: 1.5
    - {param: "*.embed_tokens.weight", rows: null}
peft: {target_modules: [{param: "*.weight", rows: 3}]}
optimizer: {groups: [{select: {param: "*.weight", rows: 3}, lr: 1.0}]}
"""


def test_a_config_file_tells_each_fault_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(CONFIG)
    with pytest.raises(ConfigError) as caught:
        read_config(file)
    told = [(problem.what, problem.where) for problem in caught.value.problems if "rows" in problem.what]
    assert any(what.startswith("`rows` is 1.5") and "line 8" in where for what, where in told)
    assert any(what.startswith("`rows` is ") and "line 9" in where for what, where in told)
    assert any("selects rows, which is not possible here" in what and "line 10" in where for what, where in told)
    assert any("selects rows, which is not possible here" in what and "line 11" in where for what, where in told)
    assert len(told) == 4


def test_a_list_of_indices_and_slices_is_told_to_be_several_entries() -> None:
    with pytest.raises(SelectorError, match="`rows` is") as caught:
        parse_selectors({"param": "e.weight", "rows": [2, "5:9"]}, also=OF_ROWS)
    (problem,) = caught.value.problems
    assert problem.fix == 'write one entry for each: {param: e.weight, rows: 2}, {param: e.weight, rows: "5:9"}'
