"""Entering a phase: flags, gradients, modes, compiled graphs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from frostline import enter_phase, plan_of, prepare
from frostline.errors import PlanMismatchError
from frostline.trainability import Prover, TrainabilityPlan

from ..conftest import changed, encoder, snapshot, step, trained

PHASES = [
    {"at": {"step": 1}, "unfreeze_modules": ["layers.2"]},
    {"at": {"step": 2}, "freeze_modules": ["layers.2"], "unfreeze_modules": ["embed"]},
]


def prepared(model: nn.Module | None = None, **block: Any) -> tuple[nn.Module, TrainabilityPlan]:
    config = {"freeze_modules": ["embed", "layers"], "phases": PHASES, **block}
    return prepare(encoder() if model is None else model, freeze_config=config)


def adamw(model: nn.Module, plan: TrainabilityPlan) -> torch.optim.Optimizer:
    params = dict(model.named_parameters())
    return torch.optim.AdamW([params[path] for path in plan.ever_trained], lr=0.1, weight_decay=0.1)


def test_flags_gradients_and_modes_follow_the_phase_and_the_plan_of_the_model_too() -> None:
    model, plan = prepared()
    model.train()
    optimizer = adamw(model, plan)
    plan.verify(model, optimizer)
    assert not model.layers[2].training
    assert model.head.training
    for index in (1, 2, 0, 2, 1):
        model(torch.randn(8, 4)).sum().backward()
        same, plan = enter_phase(model, plan, index)
        assert same is model
        assert plan.phase == index
        assert plan_of(model) is plan
        assert trained(model) == set(plan.trainable)
        assert all(param.grad is None for path, param in model.named_parameters() if path not in plan.trainable)
        model.train()
        assert model.layers[2].training is (index == 1)
        assert model.embed.training is (index == 2)
        plan.verify(model, optimizer)
    with pytest.raises(PlanMismatchError, match="no phase 3"):
        enter_phase(model, plan, 3)
    assert plan_of(model).phase == 1


def test_frozen_mode_train_lets_every_phase_follow_the_model() -> None:
    model, plan = prepared(frozen_mode="train")
    model, plan = enter_phase(model.train(), plan, 1)
    assert all(module.training for module in model.modules())


def test_verify_compares_flags_with_the_phase_in_force() -> None:
    model, plan = prepared()
    optimizer = adamw(model, plan)
    with pytest.raises(PlanMismatchError, match=r"layers\.2\.linear\.weight: planned trained, but is frozen"):
        plan.in_phase(1).verify(model)
    model, plan = enter_phase(model, plan, 1)
    plan.verify(model, optimizer)
    only_now = torch.optim.SGD([param for param in model.parameters() if param.requires_grad], lr=1.0)
    with pytest.raises(PlanMismatchError, match=r"trains in phase 2 \(the optimizer holds .*, but is not in it"):
        plan.verify(model, only_now)


def test_case_36_what_a_phase_froze_is_bit_identical_after_any_step_and_thaws_with_its_moments() -> None:
    """Row 36, with phases: neither weight decay nor old momentum reaches what is frozen now."""
    model, plan = prepared()
    optimizer = adamw(model, plan)
    params = dict(model.named_parameters())
    torch.manual_seed(0)
    for number, index in enumerate([0, 0, 1, 1, 2, 2, 2, 1, 0]):
        model, plan = enter_phase(model, plan, index)
        before = snapshot(model)
        moments = copy.deepcopy({path: optimizer.state.get(params[path], {}) for path in plan.frozen})
        step(model, optimizer, number=number)
        moved = {path for path in changed(model, before) if path in plan.decisions}
        assert moved == set(plan.trainable), index
        for path, held in moments.items():
            now = optimizer.state.get(params[path], {})
            assert held.keys() == now.keys()
            assert all(torch.equal(held[key], now[key]) for key in held)
    assert optimizer.state[params["layers.2.linear.weight"]]["step"] == 3


def naive(model: nn.Module, plan: TrainabilityPlan, phases: list[int]) -> nn.Module:
    """The same training without plans: one AdamW for each tensor, stepped in the phases that train it."""
    params = dict(model.named_parameters())
    optimizers = {path: torch.optim.AdamW([params[path]], lr=0.1, weight_decay=0.1) for path in plan.ever_trained}
    for index in phases:
        for param in params.values():
            param.requires_grad_(True)
        model.zero_grad()
        model(torch.randn(8, 4)).square().sum().backward()
        for path in plan.in_phase(index).trainable:
            optimizers[path].step()
    return model


def test_moments_are_kept_by_tensor_across_freezing_and_thawing() -> None:
    class Plain(nn.Sequential):
        def __init__(self) -> None:
            torch.manual_seed(1)
            super().__init__(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))

    visits = [0, 0, 1, 1, 0, 1, 2, 2]
    block = {
        "freeze_modules": ["0"],
        "phases": [{"at": {"step": 1}, "unfreeze_modules": ["0"]}, {"at": {"step": 2}, "freeze_modules": ["2"]}],
    }
    model, plan = prepare(Plain(), freeze_config=block)
    optimizer = adamw(model, plan)
    torch.manual_seed(7)
    for index in visits:
        model, plan = enter_phase(model, plan, index)
        step(model, optimizer)
    fresh = Plain()
    torch.manual_seed(7)
    expected = naive(fresh, plan, visits)
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("compiled", ["model", "layer", "function"])
def test_case_45_gradients_arrive_in_what_is_thawed_after_compilation(compiled: str) -> None:
    """Row 45: a compiled two-layer net gets a gradient in the layer that a phase thaws, and none in a frozen one."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    bare = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    block = {
        "freeze_modules": ["1"],
        "phases": [{"at": {"step": 1}, "unfreeze_modules": ["1"]}, {"at": {"step": 2}, "freeze_modules": ["0"]}],
    }
    model, plan = prepare(bare, freeze_config=block)
    run: Callable[[torch.Tensor], torch.Tensor] = model
    if compiled == "model":
        model = run = torch.compile(model, backend="aot_eager")
    elif compiled == "layer":
        bare[1].compile(backend="aot_eager")
    else:
        run = torch.compile(lambda x: bare(x), backend="aot_eager")
    arrived: list[set[str]] = []
    for number in range(3):
        model, plan = enter_phase(model, plan, plan.phase_at(number))
        run(torch.ones(2, 4)).sum().backward()
        arrived.append({name for name, param in bare.named_parameters() if param.grad is not None})
        bare.zero_grad()
        plan.verify(model)
    assert arrived == [{"0.weight", "0.bias"}, {"0.weight", "0.bias", "1.weight", "1.bias"}, {"1.weight", "1.bias"}]
    torch._dynamo.reset()


@pytest.mark.parametrize("whole", [False, True])
def test_case_46_a_phase_is_not_entered_inside_compiled_code(whole: bool) -> None:
    """Row 46: flags change outside compiled regions; inside it is refused, and nothing has changed."""
    torch._dynamo.reset()
    model, plan = prepared()

    def body(x: torch.Tensor) -> torch.Tensor:
        enter_phase(model, plan, 1)
        return model(x)

    compiled = torch.compile(body, backend="eager", fullgraph=whole)
    # With fullgraph it is dynamo that refuses, because the function would raise.
    expected = torch._dynamo.exc.Unsupported if whole else PlanMismatchError
    with pytest.raises(
        expected, match=r"enter_phase\(model, plan, 1\)" if whole else r"inside a compiled function[\s\S]*before"
    ):
        compiled(torch.ones(2, 4))
    assert trained(model) == set(plan.trainable)
    torch._dynamo.reset()
    enter_phase(model, plan, 1)


def test_ddp_inside_something_unknown_is_refused() -> None:
    """The order that works is named; DDP itself is tested with real processes."""
    from torch.nn.parallel import DistributedDataParallel

    class Wrapper(nn.Module):
        frostline_wrapped_child = "inner"

        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

    model, plan = prepared()
    ddp = DistributedDataParallel.__new__(DistributedDataParallel)
    nn.Module.__init__(ddp)
    ddp.module = model
    with pytest.raises(PlanMismatchError, match=r"DDP is inside Wrapper[\s\S]*wrap what it returns"):
        enter_phase(Wrapper(ddp), plan, 1)
    ddp._delay_all_reduce_params = [model.head.weight]
    with pytest.raises(PlanMismatchError, match="delay_all_reduce_named_params"):
        enter_phase(ddp, plan, 1)
    assert trained(model) == set(plan.trainable)
    assert plan_of(model).phase == 0


# ---- proof


def test_the_proof_of_a_phase_watches_what_starts_to_train_and_keeps_still_what_freezes() -> None:
    model, plan = prepared()
    optimizer = adamw(model, plan)
    prover = Prover(model, plan)
    torch.manual_seed(0)
    for number in range(4):
        index = min(plan.phase_at(number), 2)
        if index != plan.phase:
            model, plan = enter_phase(model, plan, index)
            prover = prover.next_phase(plan, 3)
            assert set(prover.watched or ()) == set(plan.phases[index - 1].thaws)
        model.train()
        step(model, optimizer, prover, number=number)
    line = prover.final_check()
    # The statistics of layers.2 moved in phase 1; the linear and the norm of it were frozen by phase 2.
    assert line == (
        "frozen part: 8 tensors and 6 buffers bit-identical to what was loaded, "
        "4 tensors and 3 buffers to what they were when a phase froze them"
    )
    with torch.no_grad():
        model.layers[2].linear.weight[0, 0] += 1
    with pytest.raises(PlanMismatchError, match=r"layers\.2\.linear\.weight"):
        prover.final_check()


def test_a_frozen_tensor_that_moved_is_found_at_the_switch() -> None:
    model, plan = prepared()
    prover = Prover(model, plan)
    with torch.no_grad():
        model.layers[2].linear.weight[0, 0] += 1  # the next phase trains it, but it had not begun
    model, plan = enter_phase(model, plan, 1)
    with pytest.raises(PlanMismatchError, match=r"layers\.2\.linear\.weight[\s\S]*end of phase 0"):
        prover.next_phase(plan, 3)


def test_what_a_phase_thaws_and_the_loss_does_not_reach_is_an_error() -> None:
    from frostline.errors import TrainingError

    model = encoder()
    model.unused = nn.Linear(2, 2)
    model, plan = prepare(
        model,
        freeze_config={"freeze_modules": ["unused"], "phases": [{"at": {"step": 1}, "unfreeze_modules": ["unused"]}]},
    )
    optimizer = adamw(model, plan)
    prover = Prover(model, plan)
    step(model, optimizer, prover)
    model, plan = enter_phase(model, plan, 1)
    prover = prover.next_phase(plan, 3)
    with pytest.raises(TrainingError, match=r"got no gradient at step 1: unused\.weight"):
        step(model, optimizer, prover, number=1)


def test_a_trained_part_of_a_later_phase_says_which_phase_to_enter(tmp_path: Any) -> None:
    import frostline as fl
    from frostline.errors import CheckpointError

    model, plan = enter_phase(*prepared(), 1)
    fl.save_trained(model, tmp_path / "part")
    fresh, _ = prepared()
    with pytest.raises(
        CheckpointError, match=r"unexpected layers\.2\.linear\.bias[\s\S]*enter_phase\(model, plan, 1\)"
    ):
        fl.load_trained(fresh, tmp_path / "part")
    fresh, _ = enter_phase(fresh, plan.in_phase(0), 1)
    fl.load_trained(fresh, tmp_path / "part")
    with pytest.raises(CheckpointError, match=r"missing embed\.bias[\s\S]*freeze_config that it was trained with"):
        fl.load_trained(prepare(encoder())[0], tmp_path / "part")
