"""A small encoder with dropout, BatchNorm and a head, and helpers that train it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from frostline.trainability import Prover, TrainabilityPlan


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(torch.tanh(self.norm(self.linear(x))))


class Encoder(nn.Module):
    """x [batch, 4] -> logits [batch, 3]."""

    def __init__(self, num_blocks: int = 3) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.layers = nn.ModuleList(Block() for _ in range(num_blocks))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def encoder() -> Encoder:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Encoder()


def trained(model: nn.Module) -> set[str]:
    return {name for name, param in model.named_parameters() if param.requires_grad}


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def changed(model: nn.Module, before: dict[str, Tensor]) -> set[str]:
    return {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}


def optimizer_of(model: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.AdamW([param for param in model.parameters() if param.requires_grad], lr=lr, weight_decay=0.1)


def step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    prover: Prover | None = None,
    *,
    number: int = 0,
    lr: float = 0.1,
) -> None:
    """One step on random inputs, watched by `prover`."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().sum().backward()
    if prover is not None:
        prover.before_step(number, lr, optimizer)
    optimizer.step()
    if prover is not None:
        prover.after_step()


def rules_of(plan: TrainabilityPlan, paths: Iterable[str]) -> dict[str, str]:
    return {path: plan.decisions[path].rule.text for path in paths}
