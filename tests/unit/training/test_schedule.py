"""Learning rates against closed forms and against torch's own schedulers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from frostline.config.models import ScheduleConfig
from frostline.errors import ConfigError
from frostline.training.schedule import LearningRateSchedule, build_schedule


def test_warmup_rises_from_above_zero_and_peaks_at_its_end():
    schedule = LearningRateSchedule("linear", total_steps=10, warmup_steps=3)
    rates = [schedule.at(step, 1.0) for step in range(10)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[3:] == sorted(rates[3:], reverse=True)
    assert rates[-1] > 0


def test_linear_equals_torch_linear_lr():
    parameter = torch.nn.Parameter(torch.zeros(1))
    reference = torch.optim.SGD([parameter], lr=0.3)
    scheduler = torch.optim.lr_scheduler.LinearLR(reference, start_factor=1.0, end_factor=1e-30, total_iters=20)
    schedule = LearningRateSchedule("linear", total_steps=20)
    for step in range(20):
        assert schedule.at(step, 0.3) == pytest.approx(reference.param_groups[0]["lr"], rel=1e-9)
        reference.step()
        scheduler.step()


def test_cosine_equals_torch_cosine_annealing():
    parameter = torch.nn.Parameter(torch.zeros(1))
    reference = torch.optim.SGD([parameter], lr=0.3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(reference, T_max=20, eta_min=0.05)
    schedule = LearningRateSchedule("cosine", total_steps=20, min_lr=0.05)
    for step in range(20):
        assert schedule.at(step, 0.3) == pytest.approx(reference.param_groups[0]["lr"], rel=1e-9)
        reference.step()
        scheduler.step()


def test_constant_ignores_min_lr():
    schedule = LearningRateSchedule("constant", total_steps=5, min_lr=0.1)
    assert [schedule.at(step, 1.0) for step in range(5)] == [1.0] * 5


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_min_lr_is_absolute_and_never_raises_a_group_above_its_peak(name: str):
    schedule = LearningRateSchedule(name, total_steps=100, min_lr=0.2)
    assert schedule.at(100, 1.0) == pytest.approx(0.2)
    assert schedule.at(50, 0.1) == pytest.approx(0.1)


def test_every_group_follows_its_own_peak():
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": [parameters[0]], "lr": 1.0}, {"params": [parameters[1]], "lr": 0.1}])
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    schedule = LearningRateSchedule("linear", total_steps=4)
    assert schedule.set_learning_rates(optimizer, 2) == 0.5
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.05]


def build(total_steps: int, **values: Any) -> LearningRateSchedule:
    return build_schedule(ScheduleConfig.model_validate(values), total_steps=total_steps)


def test_warmup_fraction_and_steps():
    assert build(50, warmup=0.1).warmup_steps == 5
    assert build(50, warmup=7).warmup_steps == 7
    assert build(1).warmup_steps == 0


@pytest.mark.parametrize("warmup", [10, 11, 0.99])
def test_warmup_as_long_as_the_run_is_an_error(warmup: float):
    with pytest.raises(ConfigError, match=r"warm-up of .* does not fit into a run of 10 steps"):
        build(10, warmup=warmup)


def test_case_39_the_rate_is_a_function_of_the_step_alone():
    schedule = LearningRateSchedule("cosine", total_steps=30, warmup_steps=5, min_lr=1e-5)
    forwards = [schedule.at(step, 1e-3) for step in range(30)]
    backwards = [schedule.at(step, 1e-3) for step in reversed(range(30))]
    assert forwards == backwards[::-1]
    assert math.isclose(max(forwards), 1e-3)
