"""One small model for all adapter tests: an embedding, a list of blocks, a head that the model names as its output."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(6, 6)
        self.v_proj = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, 6]"""
        return self.norm(x + self.v_proj(torch.tanh(self.q_proj(x))))


class Net(nn.Module):
    def __init__(self, num_blocks: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(10, 6)
        self.layers = nn.ModuleList(Block() for _ in range(num_blocks))
        self.lm_head = nn.Linear(6, 10, bias=False)

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: [batch] -> [batch, 10]"""
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(x)


@pytest.fixture
def net() -> Net:
    return Net()


@pytest.fixture
def build_net() -> Callable[..., Net]:
    return Net


@pytest.fixture
def tokens() -> Tensor:
    return torch.arange(10)


@pytest.fixture
def scattered() -> Callable[[nn.Module], None]:
    def scatter(model: nn.Module) -> None:
        """Give adapters values that have an effect."""
        generator = torch.Generator().manual_seed(1)
        for path, param in model.named_parameters():
            if ".lora_" in path:
                param.data += 0.3 * torch.randn(param.shape, generator=generator)

    return scatter
