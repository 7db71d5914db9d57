from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from frostline.config import json_schema, load_config
from frostline.config import recipe_names as names
from frostline.config.origin import Origin
from frostline.errors import ConfigError
from frostline.recipes import find_recipe, recipe_names, register
from frostline.recipes.registry import _registered
from frostline.recipes.sequence_classification import SequenceClassification


def test_built_in_recipes_and_alias() -> None:
    assert {"sequence_classification", "causal_lm"} <= set(recipe_names())
    assert find_recipe("sequence_classification").task_type == "SEQ_CLS"
    assert type(find_recipe("sft")) is type(find_recipe("causal_lm"))


def test_unknown_recipe_shows_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no recipe 'causal_ml'(.|\n)*line 1(.|\n)*nearest: causal_lm"):
        find_recipe("causal_ml", Origin("recipe", "run.yaml", 1))


def test_a_third_party_adds_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_registered, "mine", SequenceClassification)  # undone after the test
    monkeypatch.delitem(_registered, "mine")
    monkeypatch.setattr(names, "_registered", [])
    monkeypatch.setattr(SequenceClassification, "name", SequenceClassification.name)

    @register("mine")
    class Mine(SequenceClassification):
        pass

    assert isinstance(find_recipe("mine"), Mine)
    assert (Mine.name, SequenceClassification.name) == ("mine", "sequence_classification")
    with pytest.raises(ValueError, match=r"already .*Mine"):
        register("mine")(SequenceClassification)
    with pytest.raises(ConfigError, match=r"no recipe 'mime'(.|\n)*causal_lm \(alias sft\) or mine; nearest: mine"):
        find_recipe("mime")
    config = {"recipe": "mine", "model": "m", "data": {"train": "t"}}
    assert load_config(config).config.recipe == "mine"
    with pytest.raises(ConfigError, match=r'cannot be the text "mine2"(.|\n)*\(alias sft\) or mine\n.*`recipe: mine`'):
        load_config({**config, "recipe": "mine2"})
    assert json_schema()["properties"]["recipe"]["enum"] == ["sequence_classification", "causal_lm", "mine", "sft"]


def test_a_recipe_of_an_installed_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    information = tmp_path / "their_recipes-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: their-recipes\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[frostline.recipes]\ntheirs = their_recipes:Theirs\n")
    (tmp_path / "their_recipes.py").write_text(
        "from frostline.recipes.causal_lm import CausalLM\n"
        "from frostline.recipes.registry import register\n"
        "@register('theirs')\n"
        "class Theirs(CausalLM): pass\n"
    )
    monkeypatch.setattr(names, "_registered", [])
    assert "theirs" not in recipe_names()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert recipe_names() == ("sequence_classification", "causal_lm", "theirs")
    with pytest.raises(ConfigError, match=r"possible: sequence_classification, causal_lm \(alias sft\) or theirs"):
        load_config({"recipe": "thiers", "model": "m", "data": {"train": "t"}})
    assert type(find_recipe("theirs")).__name__ == "Theirs"
    _registered.pop("theirs")


def test_importing_recipes_is_light() -> None:
    script = "import sys, frostline.recipes; assert not {'torch', 'transformers', 'pydantic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
