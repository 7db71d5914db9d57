"""LoRA: a low-rank update beside frozen linears."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self, cast

import torch
from torch import nn

from frostline.adapters.base import ALL_LINEAR, DEFAULT_NAME, PEFT, register_method
from frostline.adapters.layers.in_place import adapt_in_place, adapter_dtype, add_factor
from frostline.adapters.layers.lora_linear import LoRAMixin, LoRASettings, initial_down, is_linear
from frostline.config.origin import Origins
from frostline.errors import ConfigError, Problem
from frostline.tree import PlannedParam, join_path

_DTYPES = ("auto", "float32", "float64", "bfloat16", "float16")


@register_method
@dataclass(frozen=True)
class LoRA(PEFT):
    """Low-rank adaptation (Hu et al. 2021, arXiv 2106.09685).

    Attributes:
        rank: inner size of the update, at least 1.
        alpha: the update is scaled by alpha / rank, 0 < alpha <= 3.4e38; None means 2 x rank.
        dropout: probability, 0 <= dropout < 1, applied to the adapter's input while training.
        use_rslora: scale by alpha / sqrt(rank) instead (Kalajdzievski 2023, arXiv 2312.03732).
        target_modules: `all-linear` (every linear but the output head and modules trained in full) or selectors.
        exclude_modules: selectors that always win; one that takes none of the targets away is an error.
        dtype: of the adapter tensors; `auto` is float32 beside half-precision bases, else the base's dtype.
        seed: seeds the initial values together with the path of each module.
    """

    method: ClassVar[str] = "lora"
    aliases: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("r", "dim", "lora_rank"), "rank"),
        "lora_alpha": "alpha",
        "lora_dropout": "dropout",
    }

    rank: int = 8
    alpha: float | None = None
    dropout: float = 0.0
    use_rslora: bool = False
    target_modules: Any = ALL_LINEAR
    exclude_modules: Any = ()
    dtype: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        problems = _problems(asdict(self), Origins(prefix=(type(self).__name__,)))
        if problems:
            raise ConfigError.from_problems(problems)
        # One form for equal meanings, so that methods compare equal and `to_config` reads back equal.
        object.__setattr__(self, "target_modules", _as_tuple(self.target_modules))
        object.__setattr__(self, "exclude_modules", _as_tuple(self.exclude_modules))

    @property
    def resolved_alpha(self) -> float:
        """`alpha`, or what None means."""
        return 2 * self.rank if self.alpha is None else self.alpha

    @property
    def scaling(self) -> float:
        """Factor of the update."""
        return self.resolved_alpha / (math.sqrt(self.rank) if self.use_rslora else self.rank)

    @property
    def label(self) -> str:
        """For the plan."""
        return f"{'rsLoRA' if self.use_rslora else 'LoRA'} r{self.rank}"

    def supports(self, module: nn.Module) -> bool:
        """Float `nn.Linear` and its subclasses."""
        return is_linear(module)

    def remark(self, module: nn.Module) -> str:
        """Where the rank is more than any update of this linear has."""
        linear = cast("nn.Linear", module)
        smaller = min(linear.in_features, linear.out_features)
        if self.rank <= smaller:
            return ""
        return f"rank {self.rank} exceeds the smaller side ({smaller}), which is the highest rank of an update there"

    def planned(self, module: nn.Module, *, adapter: str = DEFAULT_NAME) -> Sequence[PlannedParam]:
        """The two factors."""
        linear = cast("nn.Linear", module)
        dtype = adapter_dtype(self.dtype, linear.weight.dtype)
        return (
            PlannedParam(f"lora_A.{adapter}.weight", (self.rank, linear.in_features), dtype),
            PlannedParam(f"lora_B.{adapter}.weight", (linear.out_features, self.rank), dtype),
        )

    def transform(
        self, module: nn.Module, name: str | None = None, prefix: str | None = None, *, adapter: str = DEFAULT_NAME
    ) -> nn.Module:
        """Adapt a linear in place; B starts at zero, so that the output does not change. See `PEFT.transform`."""
        linear = cast("nn.Linear", module)
        path = join_path(prefix or "", name or "")
        weight = linear.weight
        dtype = adapter_dtype(self.dtype, weight.dtype)
        if weight.device.type == "meta":
            down = torch.empty(self.rank, linear.in_features, dtype=dtype, device="meta")
            up = torch.empty(linear.out_features, self.rank, dtype=dtype, device="meta")
        else:
            seeded = f"{path}.lora_A.{adapter}"
            down = initial_down(self.rank, linear.in_features, path=seeded, seed=self.seed, dtype=dtype)
            down = down.to(weight.device)
            up = torch.zeros(linear.out_features, self.rank, dtype=dtype, device=weight.device)
        adapt_in_place(module, LoRAMixin)
        adapted = cast("LoRAMixin", module)
        add_factor(module, "lora_A", adapter, down)
        add_factor(module, "lora_B", adapter, up)
        adapted.frostline_settings[adapter] = LoRASettings(self.scaling, self.dropout)
        return module

    def to_config(self) -> dict[str, Any]:
        """All fields, with tuples as lists."""
        fields = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        return {"method": self.method, **fields}

    def resolved(self) -> dict[str, Any]:
        """All fields, with alpha as a number."""
        return {**self.to_config(), "alpha": self.resolved_alpha}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], origins: Origins | None = None) -> Self:
        """From a `peft` block; `r`, `dim`, `lora_rank`, `lora_alpha` and `lora_dropout` are read too."""
        origins = origins or Origins(prefix=("peft",))
        fields: dict[str, Any] = {}
        problems: list[Problem] = []
        for key, value in config.items():
            name = cls.aliases.get(key, key)
            if name == "method":
                continue
            if name not in cls.__dataclass_fields__:
                possible = "keys: method, " + ", ".join(cls.__dataclass_fields__)
                problems.append(
                    Problem(f"unknown key `{key}` for {cls.method}", str(origins.at(key)), possible, "correct the key")
                )
            elif name in fields:
                problems.append(
                    Problem(
                        f"`{key}` gives {name} a second time", str(origins.at(key)), f"one of them: {name}", "keep one"
                    )
                )
            else:
                fields[name] = value
        problems.extend(_problems(fields, origins))
        if problems:
            raise ConfigError.from_problems(problems)
        return cls(**fields)


def _problems(fields: Mapping[str, Any], origins: Origins) -> list[Problem]:
    found: list[Problem] = []
    for key, (accepts, possible, fix) in _CHECKS.items():
        if key in fields and not accepts(fields[key]):
            found.append(Problem(f"{key} is {fields[key]!r}", str(origins.at(key)), possible, fix))
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _as_tuple(value: Any) -> Any:
    if value is None:
        return ()
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else value


def _is_selection(value: Any) -> bool:
    return isinstance(value, (str, Mapping, list, tuple)) and bool(cast("Sized", value))


# Key -> test of its value, what is possible, what to do.
_CHECKS: Mapping[str, tuple[Callable[[Any], bool], str, str]] = {
    "rank": (lambda value: type(value) is int and value >= 1, "an integer of at least 1", "try 8"),
    "alpha": (
        # The scaling is applied by kernels that take it as a float32.
        lambda value: value is None or (_is_number(value) and 0 < value <= torch.finfo(torch.float32).max),
        "a number above 0, and at most 3.4e38",
        "try 2 x rank",
    ),
    "dropout": (
        lambda value: _is_number(value) and 0 <= value < 1,
        "a number from 0 up to, not including, 1",
        "try 0.05",
    ),
    "use_rslora": (lambda value: isinstance(value, bool), "true or false", "correct the value"),
    "target_modules": (
        _is_selection,
        "all-linear, a selector, or a list of selectors with at least one entry",
        "name the modules to adapt, or remove the `peft` block",
    ),
    "exclude_modules": (
        lambda value: _is_selection(value) or value in (None, [], ()),
        "a selector, or a list of selectors",
        "name modules, or remove the key",
    ),
    "dtype": (lambda value: value in _DTYPES, ", ".join(_DTYPES), "correct the value"),
    "seed": (lambda value: type(value) is int, "an integer", "correct the value"),
}
