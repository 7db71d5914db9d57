from __future__ import annotations

import copy
import json
import math
import pickle
from dataclasses import replace
from typing import Any

import pytest

from frostline.adapters import LoRA
from frostline.config.origin import Origins
from frostline.errors import ArgumentError, ConfigError


@pytest.mark.parametrize(
    ("method", "scaling"),
    [
        (LoRA(rank=8), 2.0),
        (LoRA(rank=8, alpha=16), 2.0),
        (LoRA(rank=4, alpha=2.0), 0.5),
        (LoRA(rank=4, alpha=2.0, use_rslora=True), 1.0),
        (LoRA(rank=16, use_rslora=True), 8.0),
    ],
)
def test_scaling(method: LoRA, scaling: float) -> None:
    assert method.scaling == scaling


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("rank", value) for value in (0, -1, 1.5, "8", True, None)),
        *(("alpha", value) for value in (0, -1.0, "16", True, math.nan, math.inf, 1e39, 1e300, 10**400)),
        *(("dropout", value) for value in (1, 1.5, -0.1, "0.1", False, math.nan)),
        *(("use_rslora", value) for value in (1, "yes", None)),
        *(("target_modules", value) for value in ([], (), "", {}, None, 3)),
        *(("exclude_modules", value) for value in ("", {}, 0, False, 3)),
        *(("dtype", value) for value in ("fp32", None, 32, ["float32"])),
        *(("seed", value) for value in (1.5, "0", None, True)),
    ],
)
def test_every_bad_value_is_named_with_its_place(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{key} is (.|\n)*LoRA\.{key}(.|\n)*possible:(.|\n)*do:"):
        LoRA(**{key: value})
    origins = Origins("run.yaml", {("peft", key): 7}, frozenset(), ("peft",))
    with pytest.raises(ConfigError, match=rf"{key} is (.|\n)*run\.yaml, line 7: peft\.{key}"):
        LoRA.from_config({key: value}, origins)


def test_all_faults_come_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        LoRA.from_config({"rank": 0, "dropout": 1.5, "ranks": 3, "lora_alpha": 1, "alpha": 2})
    assert [problem.what for problem in caught.value.problems] == [
        "unknown key `ranks` for lora",
        "`alpha` gives alpha a second time",
        "rank is 0",
        "dropout is 1.5",
    ]


def test_names_of_other_tools_are_read() -> None:
    read = LoRA.from_config({"method": "lora", "r": 4, "lora_alpha": 2, "lora_dropout": 0.1})
    assert read == LoRA(rank=4, alpha=2, dropout=0.1)
    assert LoRA.from_config({"dim": 4}) == LoRA.from_config({"lora_rank": 4}) == LoRA(rank=4)


@pytest.mark.parametrize(
    "method",
    [
        LoRA(),
        LoRA(exclude_modules="lm_head"),
        LoRA(exclude_modules={"glob": "*.head"}, target_modules={"type": "Linear"}),
        LoRA(target_modules=("q_proj", "v_proj"), exclude_modules=["a", {"layers": 0}]),
        LoRA(rank=3, alpha=2.5, dropout=0.1, use_rslora=True, target_modules="q_proj", dtype="float64", seed=7),
    ],
)
def test_case_76_a_config_reads_back_equal_through_json(method: LoRA) -> None:
    config = json.loads(json.dumps(method.to_config()))
    assert config["method"] == "lora"
    assert LoRA.from_config(config) == method
    if isinstance(method.exclude_modules, str):
        assert config["exclude_modules"] == "lm_head"  # never a list of its letters


def test_lists_and_tuples_mean_the_same() -> None:
    assert LoRA(target_modules=["q_proj"], exclude_modules=[]) == LoRA(target_modules=("q_proj",), exclude_modules=None)
    assert hash(LoRA(target_modules=["q_proj"])) == hash(LoRA(target_modules=("q_proj",)))


def test_labels() -> None:
    assert LoRA(rank=4).label == "LoRA r4"
    assert LoRA(rank=4, use_rslora=True).label == "rsLoRA r4"


def test_arguments_of_other_libraries_are_refused_with_the_names_here() -> None:
    calls: Any = LoRA
    with pytest.raises(ArgumentError, match="3 problems") as caught:
        calls(r=2, lora_alpha=4, rnk=1)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ConfigError)
    told = [(problem.what, problem.where, problem.fix) for problem in caught.value.problems]
    assert told == [
        ("LoRA takes no argument `r`", "LoRA(r=...)", "write `rank`"),
        ("LoRA takes no argument `lora_alpha`", "LoRA(lora_alpha=...)", "write `alpha`"),
        ("LoRA takes no argument `rnk`", "LoRA(rnk=...)", "write `rank`"),
    ]
    assert caught.value.problems[0].possible.startswith("arguments: rank, alpha, dropout, ")


def test_a_method_is_copied_and_pickled_as_before() -> None:
    method = LoRA(4, alpha=2)
    assert copy.deepcopy(method) == pickle.loads(pickle.dumps(method)) == replace(method, rank=4) == method
