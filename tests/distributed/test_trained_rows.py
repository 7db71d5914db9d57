"""Trained rows under DDP: one process's batch may hold none of them, and the replicas stay equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import frostline as fl

BATCHES = torch.tensor([[[1, 7, 9, 7]], [[0, 2, 3, 4]]])  # of each process; 7 and 9 train
ROWS = "embed.trained_rows"


class Net(nn.Module):
    """tokens [batch, length] -> logits [batch, length, 10]; the head has a table of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embed(tokens)))


def prepared() -> tuple[nn.Module, fl.TrainabilityPlan]:
    torch.manual_seed(0)
    freeze = {"freeze_modules": ["embed"], "unfreeze_modules": [{"param": "embed.weight", "rows": [7, 9]}]}
    return fl.prepare(Net(), freeze_config=freeze)


def trained(model: nn.Module, tokens: Tensor) -> nn.Module:
    """Four steps of AdamW with decay on `tokens` [batch, length]."""
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=0.05, weight_decay=0.5)
    for _ in range(4):
        optimizer.zero_grad()
        logits = model(tokens)
        nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
    return model


def _worker(process_rank: int) -> dict[str, Any]:
    model, plan = prepared()
    wrapped = DistributedDataParallel(model)
    bound = plan.bind(wrapped, step="DDP")
    assert bound.digest == plan.digest
    trained(wrapped, BATCHES[process_rank])
    bound.verify(wrapped)
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def test_replicas_equal_each_other_and_one_process(spawn: Callable[..., list[Any]]) -> None:
    first, second = spawn(_worker, 2)
    assert all(torch.equal(first[name], second[name]) for name in first)
    base, _ = prepared()
    alone = trained(base, BATCHES.flatten(0, 1)).state_dict()
    assert torch.equal(first["embed.weight"], prepared()[0].state_dict()["embed.weight"])
    assert not torch.equal(first[ROWS], prepared()[0].state_dict()[ROWS])
    for name, value in alone.items():
        assert torch.allclose(first[name], value, atol=1e-5), name
