"""Tiny language models with a table of tokens: plain, tied, untied, and helpers that train them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY, WIDTH = 20, 6
TOKENS = torch.tensor([[1, 4, 17, 19], [0, 17, 3, 18]])


class Table(nn.Module):
    """tokens [batch, length] -> logits [batch, length, VOCABULARY]; `tied` shares the table with the head."""

    def __init__(self, *, tied: bool = True, bias: bool = False, **embedding: Any) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH, **embedding)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=bias)
        if tied:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.lm_head(self.norm(torch.tanh(self.mix(self.embed_tokens(tokens)))))


def table(**options: Any) -> Table:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return Table(**options)


def loss_of(model: nn.Module, tokens: Tensor = TOKENS) -> Tensor:
    """Next token, over all positions."""
    logits = model(tokens)
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def train(model: nn.Module, optimizer: torch.optim.Optimizer, count: int, tokens: Tensor = TOKENS) -> None:
    for _ in range(count):
        optimizer.zero_grad()
        loss_of(model, tokens).backward()
        optimizer.step()


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [param for param in model.parameters() if param.requires_grad]


def rows_config(rows: Any = "17:", *, head: bool = False, frozen: Any = ("*",)) -> dict[str, Any]:
    """Everything frozen but these rows of the table; `head` names the tied head, too."""
    names = ["embed_tokens.weight", *(["lm_head.weight"] if head else [])]
    return {"freeze_modules": list(frozen), "unfreeze_modules": [{"param": name, "rows": rows} for name in names]}


def scatter(model: nn.Module, seed: int = 1) -> None:
    """Away from the start, all that trains and every factor."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, param in model.named_parameters(remove_duplicate=True):
            if param.requires_grad or ".lora_" in name:
                param += 0.3 * torch.randn(param.shape, generator=generator).to(param.dtype)
