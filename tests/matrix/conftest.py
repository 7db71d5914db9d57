"""The rows of the matrix: every method in the variants that change its maths, each with a model to adapt.

A new method is one more group of rows in `VARIANTS`; every check then runs on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from frostline.adapters import PEFT, LoRA
from frostline.preparation import prepare
from frostline.trainability import TrainabilityPlan

NUM_TOKENS, WIDTH, NUM_CLASSES = 20, 8, 5


class OwnForwardLinear(nn.Linear):
    """A subclass with maths of its own: the adapter must build on it, not replace it."""

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., in_features]"""
        return torch.tanh(super().forward(x))


class Block(nn.Module):
    def __init__(self, linear: type[nn.Linear]) -> None:
        super().__init__()
        self.up_proj = linear(WIDTH, 12)
        self.down_proj = linear(12, WIDTH, bias=False)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, sequence, WIDTH]"""
        return x + self.norm(self.down_proj(torch.relu(self.up_proj(x))))


class Model(nn.Module):
    def __init__(self, linear: type[nn.Linear] = nn.Linear) -> None:
        super().__init__()
        self.embed = nn.Embedding(NUM_TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block(linear) for _ in range(2))
        self.head = nn.Linear(WIDTH, NUM_CLASSES)
        self.gradient_checkpointing = False

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: [batch, sequence] -> [batch, sequence, NUM_CLASSES]"""
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.gradient_checkpointing else block(x)
        return self.head(x)


@dataclass(frozen=True)
class Variant:
    """One row: a method, the dtype of the base, and how far equal results may lie apart.

    Attributes:
        tolerance: largest difference between two forms that are equal in exact arithmetic.
    """

    method: PEFT
    dtype: torch.dtype = torch.float32
    tolerance: float = 2e-6
    linear: type[nn.Linear] = field(default=nn.Linear)

    def base(self) -> Model:
        torch.manual_seed(0)
        return Model(self.linear).to(self.dtype)

    def tokens(self) -> Tensor:
        return torch.arange(12).reshape(3, 4) * 7 % NUM_TOKENS

    def prepared(self, **settings: Any) -> tuple[Model, TrainabilityPlan]:
        return prepare(self.base(), peft=self.method, **settings)

    def trained(self, **settings: Any) -> tuple[Model, TrainabilityPlan]:
        """With adapters whose values are no longer those of the start, so that they have an effect."""
        model, plan = self.prepared(**settings)
        scatter(model)
        return model, plan

    @property
    def has_noise(self) -> bool:
        return bool(getattr(self.method, "dropout", 0.0))


def scatter(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(1)
    for path, param in model.named_parameters():
        if ".lora_" in path:
            param.data += (0.3 * torch.randn(param.shape, generator=generator)).to(param.dtype)


VARIANTS: dict[str, Variant] = {
    "lora": Variant(LoRA(rank=4)),
    "lora-rslora": Variant(LoRA(rank=4, use_rslora=True)),
    "lora-dropout": Variant(LoRA(rank=4, dropout=0.3)),
    "lora-bf16-base": Variant(LoRA(rank=4), torch.bfloat16, 6e-2),
    "lora-all-bf16": Variant(LoRA(rank=4, dtype="bfloat16"), torch.bfloat16, 6e-2),
    "lora-fp32-beside-float64": Variant(LoRA(rank=4, dtype="float32"), torch.float64, 2e-6),
    "lora-float64": Variant(LoRA(rank=4), torch.float64, 1e-14),
    "lora-rank1": Variant(LoRA(rank=1)),
    "lora-alpha": Variant(LoRA(rank=4, alpha=3.5)),
    "lora-some-targets": Variant(LoRA(rank=4, target_modules=["down_proj"], exclude_modules=["blocks.1"])),
    "lora-own-forward": Variant(LoRA(rank=4), linear=OwnForwardLinear),
}


@pytest.fixture(params=list(VARIANTS))
def variant(request: pytest.FixtureRequest) -> Variant:
    return VARIANTS[request.param]


@pytest.fixture
def gradients() -> Callable[..., dict[str, Tensor]]:
    def measure(model: nn.Module, tokens: Tensor) -> dict[str, Tensor]:
        """Gradients of one fixed loss by canonical name."""
        model.zero_grad()
        torch.manual_seed(3)  # dropout masks
        loss = (model(tokens).double() * torch.linspace(-1, 1, NUM_CLASSES)).pow(2).sum()
        loss.backward()
        found = {name.removeprefix("_orig_mod."): param.grad for name, param in model.named_parameters()}
        return {name: grad.clone() for name, grad in found.items() if grad is not None}

    return measure
