"""`model.factory`: plans of any module without values, and every way in which it is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frostline.config.yaml_file import dump_yaml

MODELS = """
import torch
from torch import nn


class Part(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return self.down(self.up(x))


def build(width=4, depth=3):
    assert torch.empty(0).is_meta, "a plan allocates nothing"
    return nn.Sequential(*(Part(width) for _ in range(depth)), nn.Linear(width, 2))


def fails():
    raise RuntimeError("no such width")


def returns_a_list():
    return [build()]


number = 3


def leaves():
    raise SystemExit(3)
"""


@pytest.fixture
def factory(bench: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A config for `own_models.py` in the current directory; `make(model=..., ...)` changes it."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a refusal leaves nothing behind
    bench.write("own_models.py", MODELS)
    before = set(sys.modules), list(sys.path)

    def make(name: str = "own_models:build", **model: Any) -> Path:
        model = {"factory": name, "trust_code": True, **model}
        model = {key: value for key, value in model.items() if value is not ...}
        values = bench.values(peft={"rank": 2, "target_modules": ["up"]})
        return bench.write("config.yaml", dump_yaml({**values, "model": model}))

    yield make
    assert sys.path == before[1]
    for name in set(sys.modules) - before[0]:
        if name.startswith("own_"):
            del sys.modules[name]


def test_any_module_has_a_plan_that_allocates_nothing(bench: Any, factory: Any) -> None:
    factory(factory_arguments={"width": 6, "depth": 5})
    before = bench.snapshot(bench.folder)
    outcome = bench.run("plan", "config.yaml")
    assert outcome.status == 0, outcome.err
    assert bench.snapshot(bench.folder) == before
    assert "0-4 (5 equal)" in outcome.out
    assert 'target_modules "up" (5 modules)' in outcome.out
    assert "trains   180 of" in outcome.out  # 5 x 2 x (6 + 12)
    assert "data     24 read, 20 + 4 used\n" in outcome.out
    assert "there are no base files, so that no parameter counts as new" in outcome.out
    assert "`frostline train` would need tokenizer.name_or_path" in outcome.out
    assert "loads in" not in outcome.out


def test_the_dtype_of_the_config_is_that_of_the_plan(bench: Any, factory: Any) -> None:
    factory(dtype="bfloat16")
    outcome = bench.run("plan", "config.yaml", "--json")
    assert '"dtype": "bfloat16"' in outcome.out


@pytest.mark.parametrize(
    ("name", "model", "what", "possible", "do"),
    [
        ("own_models:build", {"trust_code": ...}, "`model.trust_code` is not true", "trust_code: true", "read that"),
        ("own_models:build", {"trust_code": False}, "`model.trust_code` is not true", "trust_code: true", "read that"),
        ("own_models", {}, "names no callable", "module:callable", "put a colon"),
        ("own_models.py:build:x", {}, "names no callable", "module:callable", "put a colon"),
        ("own_models:build", {"name_or_path": "m"}, "both say which model it is", "one of them", "remove the other"),
        ("own_models:build", {"revision": "v1"}, "`model.revision` has no effect", "model.name_or_path", "remove it"),
        (
            "own_models:build",
            {"attn_implementation": "eager"},
            "`model.attn_implementation` has no effect",
            "model.name_or_path",
            "remove it",
        ),
        (
            "own_models:build",
            {"trust_remote_code": True},
            "`model.trust_remote_code` has no effect",
            "model.name_or_path",
            "remove it",
        ),
        (
            "own_models:build",
            {"factory": ..., "name_or_path": "m"},
            "no effect without `model.factory`",
            "factory:",
            "",
        ),
        ("own_models:build", {"factory": ..., "trust_code": ...}, "`model.name_or_path` is missing", "Hub id", "add"),
        ("own_module:build", {}, "there is no module 'own_module'", "current directory", "correct the name"),
        ("own_models:biuld", {}, "own_models has no 'biuld'", "nearest: build", "correct the name"),
        ("own_models:number", {}, "is int, which cannot be called", "returns an nn.Module", "name the function"),
        ("own_models:fails", {}, "failed: RuntimeError: no such width", "own_models.py, line 21, in fails", "--debug"),
        ("own_models:returns_a_list", {}, "returns list", "an nn.Module", "return the model itself"),
        (
            "own_models:build",
            {"factory_arguments": {"widht": 4}},
            "failed: TypeError: build() got an unexpected keyword argument 'widht'",
            "other arguments: model.factory_arguments are given to it by name",
            "model.factory_arguments",
        ),
        ("own_models:leaves", {}, "failed: SystemExit: 3", "own_models.py, line 32, in leaves", "--debug"),
    ],
)
def test_a_factory_that_cannot_be_used_is_refused(
    bench: Any, factory: Any, name: str, model: dict[str, Any], what: str, possible: str, do: str
) -> None:
    factory(name, **model)
    outcome = bench.refused("plan", "config.yaml")
    assert what in outcome.error
    assert "config.yaml, line" in outcome.part("where")
    assert possible in outcome.part("possible")
    assert do in outcome.part("do")


def test_a_module_that_cannot_be_imported_says_what_its_code_raised(bench: Any, factory: Any) -> None:
    bench.write("own_broken.py", "import own_missing_part\n")
    factory("own_broken:build")
    outcome = bench.refused("plan", "config.yaml")
    assert "'own_broken' cannot be imported: ModuleNotFoundError: No module named 'own_missing_part'" in outcome.error
    assert "own_broken.py, line 1" in outcome.part("possible")
    bench.write("own_typo.py", "\nno python at all\n")
    factory("own_typo:build")
    outcome = bench.refused("plan", "config.yaml")
    assert "'own_typo' cannot be imported: SyntaxError" in outcome.error
    assert "own_typo.py, line 2" in outcome.part("possible")


@pytest.mark.parametrize("command", [("train",), ("train", "--smoke"), ("plan", "--data", "1")])
def test_a_model_that_the_recipe_cannot_train_is_refused_with_all_that_is_missing(
    bench: Any, factory: Any, command: tuple[str, ...]
) -> None:
    factory()
    outcome = bench.run(command[0], "config.yaml", *command[1:])
    bench.require_refusal(outcome)
    assert "the recipe sequence_classification cannot run with the model that own_models:build builds" in outcome.error
    for need in ("tokenizer.name_or_path", "PretrainedConfig", "forward takes input_ids and attention_mask"):
        assert f"it needs {need}" in outcome.part("possible") or need in outcome.part("possible")
    assert not (bench.folder / "run").exists()
