"""Conditional tensors in whole runs: what a checkpoint says of them, and when a resumed run asks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from frostline.errors import TrainingError
from frostline.trainability import TrainabilityPlan

from .conftest import WIDTH, ToyModel, toy_plan


class Routed(ToyModel):
    """Adds one of two experts to the embedding: the second one in the forward passes named `rare`."""

    def __init__(self, *rare: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.rare, self.num_calls = rare, 0

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        if self.training:
            x = x + self.experts[int(self.num_calls in self.rare)](x)
            self.num_calls += 1
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def routed(*rare: int) -> tuple[nn.Module, TrainabilityPlan]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = Routed(*rare)
    plan = toy_plan(model)
    decisions = tuple(
        entry._replace(conditional=entry.path.startswith("experts.")) for entry in plan.decisions.values()
    )
    plan = TrainabilityPlan(decisions=decisions, modules=plan.modules, rules=plan.rules, adapters=None)
    plan.apply(model)
    return model, plan


def waiting(path: Path) -> Any:
    file = path / "checkpoints" / "latest" / "state" / "progress.json"
    return json.loads(file.read_text())["progress"]["waiting"]


def train(toy: Any, parts: tuple[nn.Module, TrainabilityPlan], steps: int, **more: Any) -> Any:
    """21 examples: 3 steps are an epoch."""
    model, plan = parts
    return toy.train(
        model=model, plan=plan, training={"batch_size": 8, "max_steps": steps}, checkpoint={"every": 1}, **more
    )


def test_a_run_that_ends_before_the_epoch_says_what_waits_and_its_checkpoint_keeps_it(toy: Any) -> None:
    outcome = train(toy, routed(), 2)
    assert waiting(outcome.path) == {"experts.1.weight": 3, "experts.1.bias": 3}
    assert outcome.result.remarks == (
        "no gradient in any step of this run, which is shorter than an epoch: experts.1.weight, experts.1.bias",
    )
    assert waiting(train(toy, routed(1), 2).path) == {}


def test_an_expert_that_never_has_its_turn_stops_the_run_at_the_end_of_the_first_epoch(toy: Any) -> None:
    with pytest.raises(TrainingError, match=r"no gradient in 3 steps, which is a whole epoch: experts\.1"):
        train(toy, routed(), 9)
    assert train(toy, routed(2), 4).result.steps == 4


def test_a_resumed_run_knows_who_had_a_turn_and_ends_with_the_same_bits(toy: Any) -> None:
    whole = train(toy, routed(1), 5, name="whole")
    for done in (1, 2, 3):
        # The forward passes are counted from the start of the process: the expert's turn was, or is, the second step.
        model, plan = routed(1 - done)
        again = train(
            toy,
            (model, plan),
            5,
            name=f"from-{done}",
            resume_from=whole.path / "checkpoints" / f"step-{done:06}",
        )
        for ours, theirs in zip(again.model.parameters(), whole.model.parameters(), strict=True):
            assert torch.equal(ours, theirs)
        assert waiting(again.path) == waiting(whole.path) == {}
        assert again.result.remarks == ()


def test_a_resumed_run_does_not_begin_the_epoch_anew(toy: Any) -> None:
    first = train(toy, routed(), 2, name="first")
    with pytest.raises(TrainingError, match="no gradient in 3 steps"):
        train(toy, routed(), 9, name="second", resume_from=first.path / "checkpoints" / "step-000002")
