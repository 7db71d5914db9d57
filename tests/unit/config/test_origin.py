"""Where values came from."""

from __future__ import annotations

from frostline.config import Origin, Origins, join_keys


def test_join_keys() -> None:
    assert join_keys(("freeze_config", "freeze_modules", 0, "path")) == "freeze_config.freeze_modules[0].path"


def test_origin_text() -> None:
    assert str(Origin("a.b", "f.yaml", 3)) == "f.yaml, line 3: a.b"
    assert str(Origin("a.b")) == "a.b"
    assert str(Origin()) == "argument"
    assert Origin("a", "f", 3).short == "line 3"
    assert Origin("a").short == "a"


def test_the_nearest_enclosing_key_with_a_line_counts() -> None:
    origins = Origins("f", {("a",): 1, ("a", "b"): 2}, frozenset({("c",)}))
    assert origins.at("a", "b", 0).line == 2
    assert origins.below("a").at("x").line == 1
    assert str(origins.at("c", "d")) == "command line: c.d"
    assert origins.at("z").line is None


def test_light_names_need_no_yaml_parser_and_no_models() -> None:
    import subprocess
    import sys

    code = "import sys, frostline.config.origin; print([m for m in ('pydantic', 'ruamel.yaml') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_every_public_name_is_there() -> None:
    import frostline.config as config

    assert sorted(config.__all__) == config.__all__
    for name in config.__all__:
        assert getattr(config, name) is not None
    assert dir(config) == config.__all__


def test_what_an_override_made_comes_from_the_command_line() -> None:
    place = ("freeze_config", "phases", 0)
    origins = Origins("f.yaml", {("freeze_config",): 3}, frozenset({(*place, "at", "step")}))
    assert str(origins.below(*place).at()) == "command line: freeze_config.phases[0]"
    assert str(origins.at(*place, "at")) == "command line: freeze_config.phases[0].at"
    assert str(origins.at(*place, "lr")) == "f.yaml, line 3: freeze_config.phases[0].lr"
    assert str(origins.at("freeze_config")) == "f.yaml, line 3: freeze_config"
