"""Tiny models with a plan and adapters, as the checkpoint code sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from frostline.adapters import LoRA
from frostline.preparation import prepare
from frostline.trainability import TrainabilityPlan


def prepare_model(
    model: nn.Module,
    *,
    lora: Sequence[Any] = (),
    freeze: Any = None,
    new: Sequence[str] = (),
    name: str = "default",
    **method: Any,
) -> tuple[nn.Module, TrainabilityPlan]:
    adapter = LoRA(**{"rank": 2, **method}, target_modules=list(lora)) if lora else None
    model, plan = prepare(model, freeze_config=freeze, peft=adapter, new=new, adapter=name)
    generator = torch.Generator().manual_seed(1)
    for path, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
        if ".lora_" in path:
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model, plan


class TinyNet(nn.Module):
    """Two blocks with normalization statistics, a tied pair and a head."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(10, 6)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"proj": nn.Linear(6, 6), "norm": nn.BatchNorm1d(6)}) for _ in range(2)
        )
        self.head = nn.Linear(6, 3)
        self.out = nn.Linear(6, 10, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens: [batch] -> [batch, 13]"""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block["norm"](torch.tanh(block["proj"](x)))  # pyright: ignore[reportIndexIssue]
        return torch.cat([self.head(x), self.out(x)], dim=-1)


@pytest.fixture
def tiny_net() -> Callable[[], TinyNet]:
    return TinyNet


def train_steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int, start: int = 0) -> list[float]:
    """`count` steps on data that depends on the step, with dropout-like noise from the global generator."""
    losses: list[float] = []
    for step in range(start, start + count):
        tokens = (torch.arange(8) * (step + 3)) % 10
        loss = (model(tokens) * torch.rand(8, 13)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture(name="prepared")
def prepared_fixture() -> Callable[..., tuple[nn.Module, TrainabilityPlan]]:
    """`prepare`, after which everything that trains is given random values, so that it has an effect."""
    return prepare_model


@pytest.fixture(name="train")
def train_fixture() -> Callable[..., list[float]]:
    return train_steps
