"""Conditional tensors may miss single steps, but not a whole epoch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

from frostline import LoRA, prepare
from frostline.errors import PlanMismatchError, TrainingError
from frostline.trainability import Prover, TrainabilityPlan
from frostline.trainability.proof.gradients import no_gradient_in_an_epoch

from ..conftest import optimizer_of


class Routed(nn.Module):
    """x [batch, 4] goes through one expert, the one that the step names."""

    def __init__(self, num_experts: int = 3) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.choices = nn.ModuleList(nn.Linear(4, 4) for _ in range(num_experts))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor, expert: int) -> Tensor:
        return self.head(torch.tanh(self.choices[expert](self.inner(x))))


class Banked(nn.Module):
    """The same with all experts in one tensor each: those that are not chosen have gradients of exact zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.choices = nn.ParameterList(nn.Parameter(torch.randn(4, 4)) for _ in range(3))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor, expert: int) -> Tensor:
        chosen = nn.functional.one_hot(torch.tensor(expert), 3)
        return self.head(torch.tanh(sum(share * (x @ bank) for share, bank in zip(chosen, self.choices, strict=True))))


def tagged(plan: TrainabilityPlan, word: str = "choices.") -> TrainabilityPlan:
    """`plan` with everything below `choices` conditional, as the grammar tags it."""
    decisions = tuple(entry._replace(conditional=word in entry.path) for entry in plan.decisions.values())
    return TrainabilityPlan(
        decisions=decisions, modules=plan.modules, rules=plan.rules, adapters=plan.adapters, notes=plan.notes
    )


def prepared(model: nn.Module, **config: Any) -> tuple[nn.Module, TrainabilityPlan, torch.optim.Optimizer]:
    model, plan = prepare(model, **config)
    plan = tagged(plan)
    plan.apply(model)
    return model, plan, optimizer_of(model)


def run(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    prover: Prover,
    route: Iterable[int],
    first: int = 0,
    lr: float = 0.1,
) -> None:
    for number, expert in enumerate(route, first):
        for group in optimizer.param_groups:
            group["lr"] = lr
        model(torch.randn(8, 4), expert).square().sum().backward()
        if prover.watching:
            prover.before_step(number, lr, optimizer)
        optimizer.step()
        if prover.watching:
            prover.after_step()
        optimizer.zero_grad()


@pytest.mark.parametrize("build", [Routed, Banked])
def test_case_19_experts_that_each_have_their_turn_within_an_epoch_are_no_alarm(build: Any) -> None:
    """Row 19: what gets no gradient is said, once it is certain."""
    model, plan, optimizer = prepared(build())
    prover = Prover(model, plan, steps_per_epoch=6)
    run(model, optimizer, prover, [0, 0, 1, 1, 1])
    assert set(prover.waiting_for) == {path for path in plan.trainable if path.startswith("choices.2")}
    run(model, optimizer, prover, [2], first=5)
    assert prover.waiting_for == {}
    run(model, optimizer, prover, [0, 1, 2], first=6)
    assert not prover.watching
    prover.final_check()
    assert prover.remarks == []


@pytest.mark.parametrize("build", [Routed, Banked])
def test_an_expert_without_gradient_in_a_whole_epoch_is_an_error_before_the_last_step_of_it(build: Any) -> None:
    model, plan, optimizer = prepared(build())
    prover = Prover(model, plan, steps_per_epoch=4)
    run(model, optimizer, prover, [0, 1, 0])
    before = [param.detach().clone() for param in model.parameters()]
    with pytest.raises(
        TrainingError, match=r"conditional tensors? got no gradient in 4 steps(.|\n)*choices\.2"
    ) as caught:
        run(model, optimizer, prover, [1], first=3)
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
    block = yaml.safe_load(pasted(str(caught.value))[0])
    _, plan = prepare(build(), **block)
    assert not any(path.startswith("choices.2") for path in plan.trainable)


def test_a_run_shorter_than_an_epoch_ends_with_a_remark() -> None:
    for steps_per_epoch in (100, None):
        model, plan, optimizer = prepared(Routed())
        prover = Prover(model, plan, steps_per_epoch=steps_per_epoch)
        run(model, optimizer, prover, [0, 1, 0])
        prover.final_check()
        assert prover.remarks == [
            "no gradient in any step of this run, which is shorter than an epoch: choices.2.weight, choices.2.bias"
        ]


def test_a_resumed_run_asks_when_the_uninterrupted_one_would_have_asked() -> None:
    model, plan, optimizer = prepared(Routed())
    prover = Prover(model, plan, steps_per_epoch=6)
    run(model, optimizer, prover, [0, 0, 1])
    kept = prover.waiting_for
    assert kept == {"choices.2.weight": 6, "choices.2.bias": 6}
    resumed = Prover(model, plan, steps_per_epoch=6, done=3, waiting=kept)
    run(model, optimizer, resumed, [0, 1], first=3)
    with pytest.raises(TrainingError, match="6 steps"):
        run(model, optimizer, resumed, [1], first=5)
    resumed = Prover(model, plan, steps_per_epoch=6, done=3, waiting=kept)
    run(model, optimizer, resumed, [2, 2, 2, 2], first=3)  # experts 0 and 1 had theirs before
    assert not resumed.watching
    late = Prover(model, plan, steps_per_epoch=6, done=60, waiting={})
    run(model, optimizer, late, [0] * 8, first=60)


def test_a_resume_that_knows_nothing_of_before_waits_a_whole_epoch() -> None:
    model, plan, optimizer = prepared(Routed())
    prover = Prover(model, plan, steps_per_epoch=4, done=3)
    run(model, optimizer, prover, [0, 0, 0], first=3)
    with pytest.raises(TrainingError, match=r"choices\.1\.weight(.|\n)*choices\.2"):
        run(model, optimizer, prover, [0], first=6)


def test_a_gradient_in_a_step_without_learning_rate_counts_and_the_movement_is_asked_later() -> None:
    model, plan, optimizer = prepared(Routed(2))
    prover = Prover(model, plan, steps_per_epoch=4)
    run(model, optimizer, prover, [0, 1], lr=0.0)
    assert prover.waiting_for == {}
    assert prover.watching
    run(model, optimizer, prover, [0, 1, 0, 1], first=2)
    assert not prover.watching


def test_an_expert_whose_gradient_comes_but_that_does_not_move_is_named() -> None:
    model, plan, _ = prepared(Routed(2))
    held = [param for name, param in model.named_parameters() if "choices.1" not in name]
    optimizer = torch.optim.SGD(held)
    prover = Prover(model, plan, steps_per_epoch=8)
    with pytest.raises(PlanMismatchError, match=r"changed nothing in choices\.1\b"):
        run(model, optimizer, prover, [0, 1, 0, 1])


def test_adapters_on_experts_need_not_run_in_the_first_batch() -> None:
    model, plan, optimizer = prepared(Routed(), peft=LoRA(rank=2, target_modules=["choices.*", "inner"]))
    prover = Prover(model, plan, steps_per_epoch=6)
    prover.evaluation_begin()
    with torch.no_grad():
        model(torch.randn(2, 4), 0)
    prover.evaluation_end()
    run(model, optimizer, prover, [0, 0, 1, 1, 2, 2])
    assert prover.waiting_for == {}
    assert prover.remarks == []


def test_what_is_not_tagged_is_asked_in_the_first_step_and_both_ways_out_are_ready_to_paste() -> None:
    model, plan = prepare(Routed())
    prover = Prover(model, plan, steps_per_epoch=6)
    with pytest.raises(
        TrainingError, match=r"4 trained tensors got no gradient at step 0: choices\.1\.weight"
    ) as caught:
        run(model, optimizer_of(model), prover, [0])
    freeze, tag = (yaml.safe_load(text) for text in pasted(str(caught.value)))
    assert freeze == {"freeze_config": {"freeze_modules": [{"param": path} for path in sorted_experts(plan)]}}
    assert tag == {
        "freeze_config": {"unfreeze_modules": [{"param": path, "conditional": True} for path in sorted_experts(plan)]}
    }
    _, plan = prepare(Routed(), **freeze)
    assert not any(path.startswith(("choices.1", "choices.2")) for path in plan.trainable)


def sorted_experts(plan: TrainabilityPlan) -> list[str]:
    return [path for path in plan.trainable if path.startswith(("choices.1", "choices.2"))]


def pasted(message: str) -> list[str]:
    """The blocks of YAML in a message, as somebody would copy them."""
    blocks: list[str] = []
    for line in message.splitlines():
        line = line[12:]
        if line.startswith("freeze_config:"):
            blocks.append(line)
        elif blocks and line.startswith("  "):
            blocks[-1] += "\n" + line
    return blocks


def test_rows_that_no_batch_reaches_are_no_business_of_a_router() -> None:
    fault = no_gradient_in_an_epoch(["embed.trained_rows"], 7)
    assert fault.what.startswith("1 conditional tensor got no gradient in 7 steps")
    assert "remove the entry with `rows`" in fault.fix
    assert "freeze" not in fault.fix
    both = no_gradient_in_an_epoch(["embed.trained_rows", "experts.1.weight"], 7)
    assert '{param: "experts.1.weight"}' in both.fix
    assert 'trained_rows"}' not in both.fix
