from __future__ import annotations

import subprocess
import sys

import pytest

from frostline.config.origin import Origin
from frostline.errors import ConfigError
from frostline.recipes import find_recipe, recipe_names, register
from frostline.recipes.registry import _registered
from frostline.recipes.sequence_classification import SequenceClassification


def test_built_in_recipes_and_alias() -> None:
    assert {"sequence_classification", "causal_lm", "sft"} <= set(recipe_names())
    assert find_recipe("sequence_classification").task_type == "SEQ_CLS"
    assert type(find_recipe("sft")) is type(find_recipe("causal_lm"))


def test_unknown_recipe_shows_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no recipe 'causal_ml'(.|\n)*line 1(.|\n)*nearest: causal_lm"):
        find_recipe("causal_ml", Origin("recipe", "run.yaml", 1))


def test_a_third_party_adds_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_registered, "mine", SequenceClassification)  # undone after the test
    monkeypatch.delitem(_registered, "mine")
    monkeypatch.setattr(SequenceClassification, "name", SequenceClassification.name)

    @register("mine")
    class Mine(SequenceClassification):
        pass

    assert isinstance(find_recipe("mine"), Mine)
    assert (Mine.name, SequenceClassification.name) == ("mine", "sequence_classification")
    with pytest.raises(ValueError, match=r"already .*Mine"):
        register("mine")(SequenceClassification)


def test_importing_recipes_is_light() -> None:
    script = "import sys, frostline.recipes; assert not {'torch', 'transformers', 'pydantic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
