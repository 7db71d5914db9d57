"""LoRA on `nn.Linear`: y = base(x) + scaling * B(A(dropout(x))).

Source: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2021 (arXiv 2106.09685); rank-stabilized
scaling: Kalajdzievski, 2023 (arXiv 2312.03732).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from frostline.adapters.layers.in_place import FactorBank, InPlaceAdapted


@dataclass(frozen=True)
class LoRASettings:
    """What the forward pass needs of one adapter."""

    scaling: float
    dropout: float


class LoRAMixin(InPlaceAdapted):
    """Forward of an adapted linear. Shapes: x `[..., in_features]` -> `[..., out_features]`.

    `lora_A.<adapter>.weight` is `[rank, in_features]`, `lora_B.<adapter>.weight` is `[out_features, rank]`.
    """

    adapter_settings: dict[str, LoRASettings]
    if TYPE_CHECKING:
        lora_A: FactorBank  # noqa: N815  the field's name for this factor
        lora_B: FactorBank  # noqa: N815
        training: bool
        weight: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Base output plus the contribution of every adapter that is not merged."""
        out = cast("Tensor", super().forward(x))  # type: ignore[misc]
        if not self.adapters_enabled:
            return out
        for name, settings in self.adapter_settings.items():
            if name not in self.merged:
                out = add_low_rank(out, x, self.factor("A", name), self.factor("B", name), settings, self.training)
        return out

    def factor(self, letter: str, adapter: str) -> Tensor:
        """Factor `A` or `B` of `adapter`."""
        bank = self.lora_A if letter == "A" else self.lora_B
        return cast("Tensor", bank[adapter].weight)

    def delta(self, adapter: str) -> Tensor:
        """What `adapter` adds to the base weight: `[out_features, in_features]`, computed in its own dtype."""
        down, up = self.factor("A", adapter), self.factor("B", adapter)
        return (up @ down) * self.adapter_settings[adapter].scaling


def add_low_rank(out: Tensor, x: Tensor, down: Tensor, up: Tensor, settings: LoRASettings, training: bool) -> Tensor:
    """`out + scaling * dropout(x) @ down.T @ up.T`, in the dtype of `out`.

    Args:
        out: `[..., out_features]`; x: `[..., in_features]`; down: `[rank, in_features]`; up: `[out_features, rank]`.
    """
    if settings.dropout and training:
        x = functional.dropout(x, settings.dropout)
    autocast = torch.is_autocast_enabled(x.device.type)
    if x.dtype != down.dtype and not autocast:
        x = x.to(down.dtype)
    hidden = functional.linear(x, down)
    if hidden.dtype == out.dtype == up.dtype and not autocast:
        # One fused pass instead of three: matmul, scale and add, without a temporary of the size of `out`.
        rows = torch.addmm(
            out.reshape(-1, out.shape[-1]), hidden.reshape(-1, hidden.shape[-1]), up.t(), alpha=settings.scaling
        )
        return rows.view(out.shape)
    return out + (functional.linear(hidden, up) * settings.scaling).to(out.dtype)


def initial_down(rank: int, in_features: int, *, path: str, seed: int, dtype: torch.dtype) -> Tensor:
    """`lora_A` as drawn: uniform in +-1/sqrt(in_features), on the CPU, `[rank, in_features]`.

    The generator is seeded by (seed, path), so that the values do not depend on the order of injection or on how the
    model is distributed. The bound is that of kaiming_uniform with a = sqrt(5), as in the reference implementation.
    """
    digest = hashlib.sha256(f"{seed}\0{path}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    bound = 1 / math.sqrt(in_features)
    drawn = torch.empty(rank, in_features, dtype=torch.float32).uniform_(-bound, bound, generator=generator)
    return drawn.to(dtype)


def is_linear(module: nn.Module) -> bool:
    """Whether the maths above holds for `module`: a float linear whose forward takes x and returns a tensor."""
    return isinstance(module, nn.Linear) and module.weight.is_floating_point()
