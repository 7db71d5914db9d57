"""The keys of a PEFT method that another package brings: checked by the method, with the lines of the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
from torch import nn

from frostline.adapters import PEFT, LoRA, base, register_method
from frostline.config import Config
from frostline.config.origin import Origins
from frostline.errors import ConfigError, Problem
from frostline.recipes.runs import method_of, read_config
from frostline.tree import PlannedParam


@dataclass(frozen=True)
class Scale(PEFT):
    """A method with one key of its own."""

    method: ClassVar[str] = "scale"
    target_modules: Any = "all-linear"
    exclude_modules: Any = ()
    init: float = 1.0

    def supports(self, module: nn.Module) -> bool:
        return isinstance(module, nn.Linear)

    def planned(self, module: nn.Module, *, adapter: str = "default") -> Sequence[PlannedParam]:
        return ()

    def transform(
        self, module: nn.Module, name: str | None = None, prefix: str | None = None, *, adapter: str = "default"
    ) -> nn.Module:
        return module

    @property
    def label(self) -> str:
        return "scale"

    def to_config(self) -> dict[str, Any]:
        return {"method": self.method, **asdict(self)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], origins: Origins | None = None) -> Self:
        origins = origins or Origins(prefix=("peft",))
        fields = {key: value for key, value in config.items() if key != "method"}
        problems = [
            Problem(f"unknown key `{key}` for scale", str(origins.at(key)), "init", "remove it")
            for key in fields
            if key not in cls.__dataclass_fields__
        ]
        if not isinstance(fields.get("init", 1.0), float):
            problems.append(Problem("init is no number", str(origins.at("init")), "a number", "write a number"))
        if problems:
            raise ConfigError.from_problems(problems)
        return cls(**fields)


@pytest.fixture(autouse=True)
def scale() -> Iterator[None]:
    base.method_names()
    register_method(Scale)
    yield
    del base._METHODS["scale"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.yaml"


def write(file: Path, peft: str) -> Path:
    file.write_text(f"recipe: causal_lm\nmodel: m\ndata: {{train: t.jsonl}}\ntraining: {{seed: 7}}\npeft:\n{peft}")
    return file


def test_its_keys_reach_the_method(file: Path) -> None:
    loaded = read_config(write(file, "  method: scale\n  init: 0.5\n  target_modules: query\n"))
    assert method_of(loaded) == Scale("query", (), 0.5), "and no seed, which it does not have"
    assert method_of(read_config(file, ["peft.init=0.25"])) == Scale("query", (), 0.25)
    assert method_of(read_config(write(file, "  rank: 2\n"))) == LoRA(rank=2, seed=7)


def test_what_the_method_refuses_is_reported_with_its_line_and_with_all_else(file: Path) -> None:
    text = "  method: scale\n  init: much\n  rank: 8\n  target_modules: []\noptimizer: {lr: -1}\n"
    with pytest.raises(ConfigError) as raised:
        read_config(write(file, text))
    assert [(problem.what.split(" cannot")[0], problem.where) for problem in raised.value.problems] == [
        ("`peft.target_modules` is an empty list, so nothing would be adapted", f"{file}, line 9: peft.target_modules"),
        ("`optimizer.lr`", f"{file}, line 10: optimizer.lr"),
        ("unknown key `rank` for scale", f"{file}, line 8: peft.rank"),
        ("init is no number", f"{file}, line 7: peft.init"),
    ]


def test_aliases_are_those_of_lora_only(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown key `r` for scale\n +where: +.*line 7: peft\.r\n"):
        read_config(write(file, "  method: scale\n  r: 8\n"))
    with pytest.raises(ConfigError, match=r"unknown key `r` for scale\n +where: +command line: peft\.r\n"):
        read_config(write(file, "  method: scale\n"), ["peft.r=8"])


def test_lora_stays_strict(file: Path) -> None:
    for peft in ("  init: 0.5\n", "  method: lora\n  init: 0.5\n"):
        with pytest.raises(
            ConfigError, match=r"unknown key `peft\.init`(.|\n)*the keys here are method, target_modules"
        ):
            read_config(write(file, peft))
    with pytest.raises(ConfigError, match=r"`peft` cannot be 5\n(.|\n)*a mapping with the keys method, (.|\n)*or null"):
        read_config(write(file, "  5\n"))


def test_a_method_that_nobody_brings(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"peft\.method is 'scael'\n(.|\n)*line 6: peft\.method\n(.|\n)*lora, scale"):
        read_config(write(file, "  method: scael\n  init: 1.0\n"))


def test_a_config_in_python() -> None:
    given = {"recipe": "causal_lm", "model": "m", "data": {"train": "t"}}
    other = Config.model_validate({**given, "peft": {"method": "scale", "init": 0.5}}).peft
    assert other is not None
    assert other.model_dump(exclude_unset=True) == {"method": "scale", "init": 0.5}
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        Config.model_validate({**given, "peft": {"method": "lora", "init": 0.5}})
