"""What may be written as a selector, and what every wrong value is told, with the line of a real file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from frostline.config import load_yaml
from frostline.config.origin import Origin, Origins
from frostline.errors import SelectorError
from frostline.selectors import (
    OF_FROZEN,
    OF_TRAINED,
    Selector,
    parse_selector,
    parse_selectors,
    register_kind,
    selector_problems,
)
from frostline.selectors.selector import _KINDS


def test_a_scalar_or_mapping_is_a_list_of_one_and_a_tuple_is_a_list() -> None:
    assert parse_selectors("bert") == parse_selectors(["bert"]) == parse_selectors(("bert",))
    assert parse_selectors({"type": "Linear"}) == parse_selectors([{"type": "Linear"}])
    assert parse_selectors([]) == ()


def test_all_kinds_and_modifiers_print_as_written() -> None:
    written: dict[str, Any] = {
        '"bert"': "bert",
        'path "a.b"': {"path": "a.b"},
        'glob "*.b"': {"glob": "*.b"},
        'regex "a\\.b"': {"regex": r"a\.b"},
        "type Linear": {"type": "Linear"},
        'layers ":8" of "lm.layers"': {"layers": ":8", "of": "lm.layers"},
        "layers 0, 3, -1": {"layers": [0, 3, -1]},
        'param "*.bias"': {"param": "*.bias"},
    }
    for text, value in written.items():
        assert str(parse_selector(value)) == text
    full = parse_selector({"type": "Linear", "within": {"layers": -1}, "except": ["head", {"glob": "*.o"}]})
    assert str(full).startswith("type Linear within layers -1 except")
    assert full.excepts == parse_selectors(["head", {"glob": "*.o"}])
    assert not full.optional
    assert parse_selector({"path": "a", "optional": True}).optional


def test_modifiers_of_one_list_are_read_where_the_list_says_so() -> None:
    (frozen,) = parse_selectors({"path": "a", "frozen_mode": "train"}, also=OF_FROZEN)
    assert (frozen.frozen_mode, frozen.conditional) == ("train", False)
    (trained,) = parse_selectors({"path": "a", "conditional": True}, also=OF_TRAINED)
    assert (trained.frozen_mode, trained.conditional) == (None, True)
    assert trained != parse_selector({"path": "a"})
    for value in ("on", None, "Eval", ["eval"], True):
        with pytest.raises(SelectorError, match=r"`frozen_mode` is .*\n.*\n.*eval .* or train"):
            parse_selectors({"path": "a", "frozen_mode": value}, also=OF_FROZEN)
    for value in ("true", None, 1):
        with pytest.raises(SelectorError, match=r"`conditional` is .*\n.*\n.*true or false"):
            parse_selectors({"path": "a", "conditional": value}, also=OF_TRAINED)


def test_equality_ignores_where_it_was_written() -> None:
    here = parse_selector("a", Origins(prefix=("freeze_modules", 0)))
    assert here == parse_selector("a")
    assert hash(here) == hash(parse_selector("a"))
    assert here.origin == Origin("freeze_modules[0]")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "null is not a selector"),
        (False, "false is not a selector"),
        (True, "true is not a selector"),
        (0, "0 is not a selector"),
        (1, "1 is not a selector"),
        (1.0, r"1\.0 is not a selector"),
        (["a", ["b"]], r"\['b'\] is not a selector"),
        ("", "`selector` is '', which names nothing"),
        (" bert", "`selector` is ' bert', which names nothing"),
        (".bert", r'"\.bert" has an empty component'),
        ("bert.", "has an empty component"),
        ("a..b", "has an empty component"),
        ({}, r"names no kind of selector \(keys: none\)"),
        ({"pth": "a"}, r"names no kind of selector \(keys: pth\)[\s\S]*nearest: path"),
        ({"layer": "-2:"}, r"names no kind of selector[\s\S]*do: +rename `layer` to `layers`"),
        ({"path": "emb", "rows": "5:"}, r'unknown key `rows`[\s\S]*\{param: emb\.weight, rows: "5:"\}'),
        ({"name": "a"}, r"names no kind of selector[\s\S]*nearest: bare text, as in `- encoder`"),
        ({"class": "Linear"}, r"names no kind of selector[\s\S]*nearest: type"),
        ({"type": "Linear", "exclude": "a"}, r"unknown key `exclude` in a `type` selector[\s\S]*nearest: except"),
        ({"type": "Linear", "layer": 3}, r"unknown key `layer` in a `type` selector[\s\S]*keys: except"),
        ({"path": "a", "glob": "b"}, "this mapping has `path` and `glob`"),
        ({"type": "Linear", "witin": "a"}, "unknown key `witin` in a `type` selector[\\s\\S]*nearest: within"),
        ({"type": "Linear", "of": "a"}, "unknown key `of` in a `type` selector"),
        ({"path": 3}, "`path` is 3, but it takes text"),
        ({"glob": ""}, "`glob` is '', which names nothing"),
        ({"param": None}, "`param` is None, but it takes text"),
        ({"regex": "a(b"}, r'regex "a\(b" is not valid: missing \)'),
        ({"type": "torch.nn.Linear"}, "is not a class name[\\s\\S]*write `Linear`"),
        ({"type": "Lin*"}, "is not a class name"),
        ({"layers": None}, "`layers` is None, but it takes positions"),
        ({"layers": True}, "`layers` is True, but it takes positions"),
        ({"layers": []}, r"`layers` is \[\], but it takes positions"),
        ({"layers": [0, "1"]}, "but it takes positions"),
        ({"layers": [True]}, "but it takes positions"),
        ({"layers": 1.5}, "but it takes positions"),
        ({"layers": "a:b"}, '"a:b", which is no slice'),
        ({"layers": "1:2:3:4"}, "which is no slice"),
        ({"layers": "+-1:"}, "which is no slice"),
        ({"layers": "--1"}, "which is no slice"),
        ({"layers": "3"[:0]}, "which is no slice"),
        ({"layers": "::0"}, "a step of 0 goes nowhere"),
        ({"layers": 0, "of": 3}, "`of` is 3, but it takes text"),
        ({"path": "a", "optional": "yes"}, "`optional` is 'yes'"),
        ({"path": "a", "optional": None}, "`optional` is null"),
        ({"path": "a", "conditional": True}, "`conditional` has no meaning here[\\s\\S]*peft.target_modules"),
        ({"path": "a", "frozen_mode": "eval"}, "`frozen_mode` has no meaning here[\\s\\S]*freeze_modules"),
        ({"conditional": True}, r"names no kind of selector \(keys: conditional\)"),
        ({"path": "a", "within": {"param": "*"}}, "`within` needs modules"),
        ({"path": "a", "within": ["b"]}, r"\['b'\] is not a selector"),
        ({"path": "a", "except": None}, "null is not a selector"),
    ],
)
def test_every_wrong_value_is_refused_in_plain_words(value: Any, message: str) -> None:
    with pytest.raises(SelectorError, match=message):
        parse_selectors(value)


def test_all_problems_come_at_once_with_the_lines_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "freeze_modules:\n"
        "  - bert\n"
        "  - 7\n"
        "  - {path: a, glob: b}\n"
        "  - type: Linear\n"
        "    witin: x\n"
        "    exept: y\n"
        "  - glob: '*.a'\n"
        "    within:\n"
        "      regex: '('\n"
        "    except: [{layers: a}]\n"
        "    optional: 1\n",
        encoding="utf-8",
    )
    document = load_yaml(path)
    problems = selector_problems(document.data["freeze_modules"], document.origins.below("freeze_modules"))
    lines = [str(problem.where).rpartition("line ")[2] for problem in problems]
    assert lines == [
        "3: freeze_modules[1]",
        "4: freeze_modules[2]",
        "6: freeze_modules[3].witin",
        "7: freeze_modules[3].exept",
        "10: freeze_modules[4].within.regex",
        "11: freeze_modules[4].except[0].layers",
        "12: freeze_modules[4].optional",
    ]
    assert str(path) in str(problems[0].where)
    assert selector_problems("bert", Origins()) == []
    with pytest.raises(SelectorError, match="7 problems"):
        parse_selectors(document.data["freeze_modules"], document.origins)


def test_parse_selector_takes_one_and_refuses_a_list() -> None:
    assert isinstance(parse_selector("a"), Selector)
    with pytest.raises(SelectorError, match=r"\['a'\] is not a selector"):
        parse_selector(["a"])


def test_another_package_adds_a_kind() -> None:
    class Everything:
        key, selects, options, pattern = "everything", "modules", (), "everything"

        @classmethod
        def parse(cls, value: Any, options: Any) -> Everything:
            return cls()

        def find(self, tree: Any, scope: Any) -> list[int]:
            return [0]

    try:
        register_kind(Everything)  # type: ignore[type-var]
        assert isinstance(parse_selector({"everything": 1}).kind, Everything)
    finally:
        del _KINDS["everything"]
