"""LoRA on `nn.Linear`: y = base(x) + scaling * B(A(dropout(x))).

Source: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2021 (arXiv 2106.09685); rank-stabilized
scaling: Kalajdzievski, 2023 (arXiv 2312.03732).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from frostline.adapters.layers.in_place import FactorBank, InPlaceAdapted
from frostline.errors import AdapterError


@dataclass(frozen=True)
class LoRASettings:
    """What the forward pass needs of one adapter."""

    scaling: float
    dropout: float


class LoRAMixin(InPlaceAdapted):
    """Forward of an adapted linear. Shapes: x `[..., in_features]` -> `[..., out_features]`.

    `lora_A.<adapter>.weight` is `[rank, in_features]`, `lora_B.<adapter>.weight` is `[out_features, rank]`.
    """

    frostline_settings: dict[str, LoRASettings]
    if TYPE_CHECKING:
        lora_A: FactorBank
        lora_B: FactorBank
        training: bool
        weight: Tensor
        bias: Tensor | None

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Base output plus the contribution of every adapter that is not merged; further arguments are the base's."""
        if not self.frostline_enabled:
            return super().forward(x, *args, **kwargs)  # type: ignore[misc]
        if self.frostline_base_class.forward is not nn.Linear.forward:
            out = super().forward(x, *args, **kwargs)  # type: ignore[misc]
            return self._frostline_add(_one_tensor(out, self), x, in_place=False)
        # Rows first: only an output that is no view can take the update in place without autograd copying it.
        rows = x.reshape(-1, x.shape[-1])
        out = functional.linear(rows, self.weight, self.bias)
        out = self._frostline_add(out, rows, in_place=type(out) is Tensor)
        return out.view(x.shape[:-1] + out.shape[-1:])

    def _frostline_add(self, out: Tensor, x: Tensor, *, in_place: bool) -> Tensor:
        for name, settings in self.frostline_settings.items():
            if name not in self.frostline_merged:
                down, up = self.frostline_factor("A", name), self.frostline_factor("B", name)
                out = add_low_rank(out, x, down, up, settings, training=self.training, in_place=in_place)
        return out

    def frostline_factor(self, letter: str, adapter: str) -> Tensor:
        """Factor `A` or `B` of `adapter`."""
        bank = self.lora_A if letter == "A" else self.lora_B
        return cast("Tensor", bank[adapter].weight)

    def frostline_delta(self, adapter: str) -> Tensor:
        """What `adapter` adds to the base weight: `[out_features, in_features]`, computed in its own dtype."""
        down, up = self.frostline_factor("A", adapter), self.frostline_factor("B", adapter)
        return (up @ down) * self.frostline_settings[adapter].scaling


@torch.fx.wrap  # one node of a graph: dtypes decide within, and a tracer has none
def add_low_rank(
    out: Tensor,
    x: Tensor,
    down: Tensor,
    up: Tensor,
    settings: LoRASettings,
    *,
    training: bool,
    in_place: bool = False,
) -> Tensor:
    """`out + scaling * dropout(x) @ down.T @ up.T`, in the dtype of `out`.

    Args:
        out: `[..., out_features]`; x: `[..., in_features]`; down: `[rank, in_features]`; up: `[out_features, rank]`.
        in_place: `out` may be overwritten: it is `[rows, out_features]`, fresh, and nobody kept it for backward.
    """
    autocast = torch.is_autocast_enabled(x.device.type)
    # Autocast brings all to its own dtype, but for float64, which it leaves alone.
    if x.dtype != down.dtype and (not autocast or torch.float64 in (x.dtype, down.dtype)):
        x = x.to(down.dtype)
    if settings.dropout and training:
        x = functional.dropout(x, settings.dropout)
    hidden = functional.linear(x, down)
    if hidden.dtype == out.dtype and (autocast or up.dtype == out.dtype):
        # One fused pass instead of three: matmul, scale and add, without temporaries of the size of `out`.
        if in_place:
            # Autocast leaves in-place methods alone, so the factor is cast here.
            return out.addmm_(hidden, up.t().to(out.dtype), alpha=settings.scaling)
        rows = out.reshape(-1, out.shape[-1])
        rows = torch.addmm(rows, hidden.reshape(-1, hidden.shape[-1]), up.t(), alpha=settings.scaling)
        return rows.view(out.shape)
    return out + (functional.linear(hidden, up) * settings.scaling).to(out.dtype)


def _one_tensor(out: object, module: object) -> Tensor:
    if isinstance(out, (Tensor, torch.fx.Proxy)):
        return cast("Tensor", out)
    base = getattr(module, "frostline_base_class", type(module)).__name__
    raise AdapterError(
        f"{base}.forward returns {type(out).__name__}, but LoRA adapts linears that return one tensor",
        where=base,
        possible="nn.Linear and subclasses that return one tensor",
        fix="put these modules into exclude_modules",
    )


def initial_down(rank: int, in_features: int, *, path: str, seed: int, dtype: torch.dtype) -> Tensor:
    """`lora_A` as drawn: uniform in +-1/sqrt(in_features), on the CPU, `[rank, in_features]`.

    The generator is seeded by (seed, path), so that the values do not depend on the order of injection or on how the
    model is distributed. The bound is that of kaiming_uniform with a = sqrt(5), as in the reference implementation.
    """
    digest = hashlib.sha256(f"{seed}\0{path}".encode()).digest()
    generator = torch.Generator("cpu").manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    bound = 1 / math.sqrt(in_features)
    # The device is named because a default device (`with torch.device("cuda")`) may be in force.
    drawn = torch.empty(rank, in_features, dtype=torch.float32, device="cpu")
    drawn.uniform_(-bound, bound, generator=generator)
    return drawn.to(dtype)


def is_linear(module: nn.Module) -> bool:
    """Whether the maths above can hold for `module`: a linear with a floating-point weight."""
    return isinstance(module, nn.Linear) and module.weight.is_floating_point()
