"""Tiny models for tests with several processes, equal in each of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.norm(self.linear(x)))


class Encoder(nn.Module):
    """x [batch, 4] -> logits [batch, 3]."""

    def __init__(self, num_blocks: int = 4) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.layers = nn.ModuleList(Block() for _ in range(num_blocks))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x) + 0


class Mlp(nn.Module):
    """x [batch, 4] -> [batch, 4]; `up` and `down` are what column and row parallel styles expect."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(4, 4)
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(self.before(x)))) + 0


class Tied(nn.Module):
    """tokens [batch, sequence] -> logits [batch, sequence, 6]; the head is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.body(self.embed(tokens))) + 0


class Extensible(nn.Module):
    """A base, extensions, and a constant that the model itself built frozen: x [batch, 4] -> [batch, 4]."""

    parallel_parameter: nn.Parameter

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 4)
        self.extension = nn.Linear(4, 4)
        self.ext_more = nn.Linear(4, 4)
        self.model_constant = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.ext_more(torch.tanh(self.extension(torch.tanh(self.base(x))))) * self.model_constant
        return x * self.parallel_parameter if hasattr(self, "parallel_parameter") else x


def seeded(kind: type[nn.Module], seed: int = 0) -> Any:
    """A model of this class with the same values in every process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return kind()


def inputs(process_rank: int = 0, batch: int = 4) -> Tensor:
    """x [batch, 4], another one for each process."""
    return torch.randn(batch, 4, generator=torch.Generator().manual_seed(100 + process_rank))
