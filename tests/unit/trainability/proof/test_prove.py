"""The prover raises on every departure from the plan, and on nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from frostline import LoRA, prepare
from frostline.errors import PlanMismatchError, TrainingError
from frostline.trainability import Prover
from frostline.trainability.agreement import Agreement
from frostline.trainability.proof import movement
from frostline.trainability.proof.gradients import MAX_WATCHED_STEPS, GradientWatch

from ..conftest import encoder, optimizer_of, step

FREEZE: dict[str, Any] = {"freeze_modules": ["embed", {"layers": ":2"}]}


def prepared(**config: Any) -> tuple[nn.Module, torch.optim.Optimizer, Prover]:
    model, plan = prepare(encoder(), **(config or {"freeze_config": FREEZE}))
    model.train()
    return model, optimizer_of(model), Prover(model, plan)


class TwoInputs(nn.Module):
    """A text and a video branch; only what is fed gets gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.video = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.text(x)


def test_a_healthy_run_passes_and_says_so_in_one_line() -> None:
    model, optimizer, prover = prepared()
    step(model, optimizer, prover)
    assert not prover.watching
    for number in range(1, 4):
        step(model, optimizer, prover, number=number)
    assert prover.final_check() == "frozen part: 10 tensors and 6 buffers bit-identical to what was loaded"
    assert prover.remarks == []


def test_without_frozen_buffers_the_line_counts_tensors_only() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    _, plan = prepare(model, freeze_config={"freeze_modules": ["0"]})
    assert Prover(model, plan).final_check() == "frozen part: 2 tensors bit-identical to what was loaded"


# -- gradients


def test_case_17_case_19_a_branch_without_gradient_is_named_with_the_config_that_freezes_it() -> None:
    model, plan = prepare(TwoInputs())
    with pytest.raises(TrainingError, match=r"2 trained tensors got no gradient at step 0: video\.weight") as caught:
        step(model, optimizer_of(model), Prover(model, plan))
    assert '    - {param: "video.bias"}' in str(caught.value)
    model, plan = prepare(TwoInputs(), freeze_config={"freeze_modules": ["video"]})
    step(model, optimizer_of(model), Prover(model, plan))


def test_case_16_case_18_a_gate_behind_argmax_never_gets_a_gradient_and_is_named() -> None:
    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(4, 2)
            self.out = nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(x) * (1 + self.gate(x).argmax(-1, keepdim=True))

    model, plan = prepare(Routed())
    with pytest.raises(TrainingError, match=r"gate\.weight, gate\.bias"):
        step(model, optimizer_of(model), Prover(model, plan))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_is_named(value: float) -> None:
    model, optimizer, prover = prepared()
    model.head.bias.register_hook(lambda grad: grad * value)
    with pytest.raises(TrainingError, match=r"gradient of head\.bias is not finite at step 0"):
        step(model, optimizer, prover)


def test_gradients_of_every_kind_are_measured_in_their_own_range() -> None:
    model = nn.ModuleDict(
        {"sparse": nn.Embedding(4, 2, sparse=True), "wide": nn.Linear(2, 2).double(), "empty": nn.Module()}
    )
    model["empty"].weight = nn.Parameter(torch.empty(0, 2))
    _, plan = prepare(model)
    prover = Prover(model, plan)
    rows = model["sparse"](torch.tensor([1])).double()
    (model["wide"](rows).sum() * 1e200 + model["empty"].weight.sum()).backward()
    model["sparse"].weight.grad = torch.sparse_coo_tensor([[1]], [[1.0, 0.0]], (4, 2), check_invariants=True)
    prover.before_step(0, 0.1)  # 1e200 is finite in float64; no elements are no zero gradient
    model["wide"].weight.grad = torch.full((2, 2), 1e-200, dtype=torch.float64)
    watch = GradientWatch(dict(model.named_parameters()), plan, plan.trainable, Agreement(None))
    watch.look(1)
    assert watch.pending == []


# -- zero gradients


def test_case_78_the_zero_gradient_behind_a_zero_partner_is_no_alarm() -> None:
    model, optimizer, prover = prepared(peft=LoRA(rank=2, target_modules=["linear"]))
    step(model, optimizer, prover)  # B is zero, so the gradient of A is exactly zero
    assert model.layers[0].linear.lora_A["default"].weight.grad.abs().max() == 0
    assert prover.watching
    step(model, optimizer, prover, number=1)
    assert not prover.watching
    assert prover.remarks == []


def test_an_adapter_whose_gradient_stays_zero_is_an_error_after_some_steps() -> None:
    class Ignored(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.ignored = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x) + 0 * self.ignored(x)

    model, plan = prepare(Ignored(), peft=LoRA(rank=1))
    optimizer, prover = optimizer_of(model), Prover(model, plan)
    for number in range(MAX_WATCHED_STEPS - 1):
        step(model, optimizer, prover, number=number)
    with pytest.raises(TrainingError, match=r"ignored\.lora_A\.default\.weight.* stayed exactly zero for 3 steps"):
        step(model, optimizer, prover, number=MAX_WATCHED_STEPS - 1)


class Zeroed(nn.Module):
    """`shut` is multiplied by `gate`, which starts at zero; `table` has rows that no batch names."""

    def __init__(self, **flags: bool) -> None:
        super().__init__()
        self.used, self.shut, self.table = nn.Linear(4, 2), nn.Linear(4, 2), nn.Embedding(50, 4)
        self.gate = nn.Parameter(torch.zeros(1)) if flags.get("gated") else 1.0
        self.flags = flags

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.table(torch.tensor([3]))
        shut = 0 * self.shut(x) if self.flags.get("dead") else self.shut(x)
        return self.used(x) + self.gate * shut


@pytest.mark.parametrize("config", [{}, {"freeze_config": {"unfreeze_modules": ["shut"]}, "peft": LoRA(rank=1)}])
def test_a_trained_module_without_effect_on_the_loss_is_an_error_that_shows_the_config(config: Any) -> None:
    model, plan = prepare(Zeroed(dead=True), **config)
    optimizer, prover = optimizer_of(model), Prover(model, plan)
    for number in range(MAX_WATCHED_STEPS - 1):
        step(model, optimizer, prover, number=number)
    with pytest.raises(TrainingError, match=r"all that trains in shut was exactly zero .* first 3 steps") as caught:
        step(model, optimizer, prover, number=MAX_WATCHED_STEPS - 1)
    assert '    - {param: "shut.weight"}' in str(caught.value)


def test_a_module_behind_a_gate_that_starts_at_zero_is_no_alarm() -> None:
    model, plan = prepare(Zeroed(gated=True))
    optimizer, prover = optimizer_of(model), Prover(model, plan)
    for number in range(MAX_WATCHED_STEPS):
        step(model, optimizer, prover, number=number)
    assert prover.remarks == []


def test_a_dead_tensor_beside_one_that_moves_is_a_remark() -> None:
    class Shifted(nn.Module):
        """A bias on all logits alike changes no softmax."""

        def __init__(self) -> None:
            super().__init__()
            self.score = nn.Linear(4, 2)
            self.shift = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.score(x) + nn.functional.linear(x, self.shift.weight) + 0 * self.shift.bias

    for config in ({}, {"freeze_config": {"freeze_modules": [{"param": "shift.weight"}]}}):
        model, plan = prepare(Shifted(), **config)
        optimizer, prover = optimizer_of(model), Prover(model, plan)
        for number in range(MAX_WATCHED_STEPS):
            step(model, optimizer, prover, number=number)
        assert prover.remarks == ["gradient exactly zero in the first 3 steps: shift.bias"]


# -- what moves


def test_a_frozen_weight_that_moves_is_found_after_the_step() -> None:
    model, optimizer, prover = prepared()
    optimizer.add_param_group({"params": [model.embed.weight]})
    model.embed.weight.grad = None
    optimizer.zero_grad = lambda: None  # type: ignore[method-assign]
    model.embed.weight.grad = torch.ones_like(model.embed.weight)
    with pytest.raises(PlanMismatchError, match=r"frozen tensors changed in the first step: embed\.weight"):
        step(model, optimizer, prover)


def test_case_31_statistics_of_a_frozen_part_that_move_in_the_forward_pass_are_found() -> None:
    model, optimizer, prover = prepared()
    nn.Module.train(model.layers[0].norm, True)  # somebody forces it back
    with pytest.raises(PlanMismatchError, match=r"layers\.0\.norm\.running_mean, layers\.0\.norm\.running_var"):
        step(model, optimizer, prover)


def test_statistics_without_a_counter_are_found_too() -> None:
    model = encoder()
    model.layers[0].norm.num_batches_tracked = None
    _, plan = prepare(model, freeze_config=FREEZE)
    model.train()
    prover = Prover(model, plan)
    model.layers[0].norm.momentum = 0.5
    nn.Module.train(model.layers[0].norm, True)
    with pytest.raises(PlanMismatchError, match=r"layers\.0\.norm\.running_mean"):
        step(model, optimizer_of(model), prover)


def test_frozen_mode_train_lets_statistics_move() -> None:
    model, optimizer, prover = prepared(freeze_config={**FREEZE, "frozen_mode": "train"})
    step(model, optimizer, prover)
    assert prover.final_check() == "frozen part: 10 tensors bit-identical to what was loaded"


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.embed.weight.data.add_(1e-3),
        lambda model: setattr(model.embed, "weight", nn.Parameter(model.embed.weight + 1, requires_grad=False)),
        lambda model: setattr(model.embed.weight, "data", model.embed.weight.data + 1),
        lambda model: model.layers[0].norm.register_buffer("running_mean", torch.ones(4)),
        lambda model: model.register_module("embed", None),
    ],
)
def test_the_final_check_catches_a_changed_frozen_tensor_however_it_was_changed(change: Callable[[Any], Any]) -> None:
    model, optimizer, prover = prepared()
    step(model, optimizer, prover)
    change(model)
    for look in (prover.before_save, prover.final_check):
        with pytest.raises(PlanMismatchError, match=r"frozen tensors changed during the run: (embed|layers\.0\.norm)"):
            look()


def test_writing_equal_values_is_no_fault() -> None:
    model, optimizer, prover = prepared()
    with torch.no_grad():
        model.embed.weight.copy_(model.embed.weight.clone())
    step(model, optimizer, prover)
    prover.final_check()


def test_a_trained_module_that_does_not_move_is_named() -> None:
    model, _, prover = prepared()
    held = [param for name, param in model.named_parameters() if param.requires_grad and "head" not in name]
    with pytest.raises(PlanMismatchError, match=r"changed nothing in head\b"):
        step(model, torch.optim.SGD(held), prover)


def test_a_warm_up_step_with_lr_zero_is_not_judged() -> None:
    model, optimizer, prover = prepared()
    step(model, optimizer, prover, lr=0.0)
    assert prover.watching
    step(model, optimizer, prover, number=1)
    assert not prover.watching


# -- steps too small to be seen


class Normed(nn.Module):
    """A linear and a norm whose only weights are ones, at which float32 has a spacing of 1.2e-7."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.RMSNorm(4)
        self.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x.to(self.norm.weight.dtype))).float() + x


def warmed_up(
    model: nn.Module, optimizer: torch.optim.Optimizer, prover: Prover, rates: Iterable[float], peak: float = 2e-5
) -> None:
    for group in optimizer.param_groups:
        group.setdefault("initial_lr", peak)
    for number, lr in enumerate(rates):
        step(model, optimizer, prover, number=number, lr=lr)


def test_a_long_warm_up_is_no_alarm() -> None:
    model, plan = prepare(Normed())
    prover = Prover(model, plan)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    warmed_up(model, optimizer, prover, [2e-8])
    assert torch.equal(model.norm.weight, torch.ones(4))
    assert prover.watching
    warmed_up(model, optimizer, prover, [2e-8 * number for number in range(2, 17)])
    assert not torch.equal(model.norm.weight, torch.ones(4))
    assert not prover.watching
    prover.final_check()
    assert prover.remarks == []


def test_a_module_that_no_step_can_be_seen_in_is_a_remark_and_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    sums = movement.tensor_checksums
    monkeypatch.setattr(movement, "tensor_checksums", lambda tensors: looked.extend(tensors) or sums(tensors))
    model, plan = prepare(Normed())
    prover = Prover(model, plan)
    optimizer = torch.optim.SGD(model.parameters())
    warmed_up(model, optimizer, prover, [1e-20] * 100, peak=1e-4)
    at_first = 3
    assert len(looked) == at_first + 7 * 3, "100 steps: looked at after 1, 2, 4, ..., 64"
    prover.final_check()
    assert prover.remarks == [
        "linear, norm did not move: each step was below the spacing of its numbers (a higher learning rate, or float32)"
    ]


def test_a_module_that_the_optimizer_forgot_is_known_once_a_step_could_be_seen() -> None:
    model, plan = prepare(Normed())
    prover = Prover(model, plan)
    optimizer = torch.optim.AdamW(model.linear.parameters(), weight_decay=0.0)
    warmed_up(model, optimizer, prover, [2e-8, 4e-8])
    with pytest.raises(PlanMismatchError, match=r"changed nothing in norm\b"):
        warmed_up(model, optimizer, prover, [0.1, 0.1])


def test_a_rate_that_can_never_be_seen_in_bfloat16_is_known_at_the_first_step() -> None:
    model, plan = prepare(Normed(torch.bfloat16))
    prover = Prover(model, plan)
    with pytest.raises(PlanMismatchError, match=r"changed nothing in (linear, )?norm\b(.|\n)*bfloat16"):
        warmed_up(model, torch.optim.AdamW(model.parameters(), weight_decay=0.0), prover, [2e-5])


def test_each_group_is_judged_by_its_own_rate() -> None:
    model, plan = prepare(Normed())
    prover = Prover(model, plan)
    groups = [{"params": [*model.linear.parameters()]}, {"params": [model.norm.weight]}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
    for group, peak in zip(optimizer.param_groups, (0.1, 1e-4), strict=True):
        group["initial_lr"] = peak
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().sum().backward()
    optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = 0.1, 1e-9
    prover.before_step(0, 0.1, optimizer)
    optimizer.step()
    prover.after_step()
    assert prover.watching


def test_weights_that_have_exploded_are_named_instead_of_a_dead_adapter() -> None:
    class Saturated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.linear(x))

    model, plan = prepare(Saturated(), peft=LoRA(rank=1))
    optimizer, prover = optimizer_of(model), Prover(model, plan)
    with pytest.raises(TrainingError, match=r"weights have grown to (1e\+\d+|inf) (.|\n)*lower the learning rate"):
        warmed_up(model, optimizer, prover, [1e15] * MAX_WATCHED_STEPS)


# -- adapters run


class Bypassed(nn.Module):
    """Calls one linear, reads the weight of another, as some fused code paths do; `mode` says when."""

    def __init__(self, bypass: str) -> None:
        super().__init__()
        self.called, self.read = nn.Linear(4, 4), nn.Linear(4, 4)
        self.bypass = bypass

    def forward(self, x: Tensor) -> Tensor:
        if self.bypass == ("training" if self.training else "evaluation"):
            return nn.functional.linear(self.called(x), self.read.weight, self.read.bias)
        return self.read(self.called(x))


@pytest.mark.parametrize("evaluate_first", [False, True])
def test_an_adapter_that_never_runs_in_training_is_named(evaluate_first: bool) -> None:
    model, plan = prepare(Bypassed("training"), peft=LoRA(rank=1))
    prover = Prover(model, plan)
    if evaluate_first:  # what runs there says nothing of training
        evaluate(model, prover)
    with pytest.raises(TrainingError, match="the adapters of read did not run in training"):
        step(model.train(), optimizer_of(model), prover)


@pytest.mark.parametrize("evaluate_first", [False, True])
def test_an_adapter_that_is_bypassed_in_evaluation_is_named(evaluate_first: bool) -> None:
    model, plan = prepare(Bypassed("evaluation"), peft=LoRA(rank=1))
    prover = Prover(model, plan)
    if not evaluate_first:
        step(model.train(), optimizer_of(model), prover)
    with pytest.raises(TrainingError, match="the adapters of read did not run in evaluation"):
        evaluate(model, prover)


def evaluate(model: nn.Module, prover: Prover) -> None:
    prover.evaluation_begin()
    with torch.no_grad():
        model.eval()(torch.randn(2, 4))
    prover.evaluation_end()


def test_no_hook_stays_behind() -> None:
    model, plan = prepare(Bypassed("never"), peft=LoRA(rank=1))
    prover = Prover(model, plan)
    evaluate(model, prover)
    step(model.train(), optimizer_of(model), prover)
    evaluate(model, prover)
    assert not any(module._forward_pre_hooks for module in model.modules())
