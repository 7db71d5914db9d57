"""The metric that is watched."""

from __future__ import annotations

import math

import pytest

from frostline.errors import ConfigError
from frostline.training.best import BestWatch


def test_max_and_min():
    up, down = BestWatch("accuracy", "max"), BestWatch("loss", "min")
    values = [(0.5, 1.0), (0.7, 1.2), (0.7, 0.9), (0.6, 0.8)]
    better = [
        (up.update(step, {"accuracy": accuracy}), down.update(step, {"loss": loss}))
        for step, (accuracy, loss) in enumerate(values)
    ]
    assert better == [(True, True), (True, False), (False, True), (False, True)]
    assert (up.value, up.step, down.value, down.step) == (0.7, 1, 0.8, 3)


def test_patience_counts_evaluations_without_improvement():
    watch = BestWatch("loss", "min", patience=2)
    stops = []
    for step, loss in enumerate([1.0, 1.1, 0.9, 0.95, 0.9]):
        watch.update(step, {"loss": loss})
        stops.append(watch.should_stop)
    assert stops == [False, False, False, False, True]
    assert watch.describe() == "loss 0.9 at step 2 was not improved by 2 evaluations"


def test_a_value_that_is_not_finite_is_never_the_best():
    watch = BestWatch("loss", "min", patience=2)
    assert not watch.update(1, {"loss": math.nan})
    assert not watch.update(2, {"loss": -math.inf})
    assert watch.value is None
    assert watch.should_stop
    assert "never a finite number" in watch.describe()


def test_state_restores_everything():
    watch = BestWatch("loss", "min", patience=3)
    for step, loss in enumerate([1.0, 0.5, 0.6]):
        watch.update(step, {"loss": loss})
    resumed = BestWatch("loss", "min", patience=3)
    resumed.restore(watch.state())
    assert resumed == watch


def test_an_unknown_metric_lists_the_real_ones():
    watch = BestWatch("acuracy", "max")
    with pytest.raises(
        ConfigError, match=r"no metric is called 'acuracy'(.|\n)*possible: did you mean `accuracy`\? accuracy, loss"
    ):
        watch.update(1, {"accuracy": 0.5, "loss": 1.0, "report": object()})


def test_of_equal_values_the_one_with_the_lower_loss_is_better():
    watch = BestWatch("accuracy", "max", patience=2)
    losses = [0.52, 0.28, 0.23, 0.23, math.nan]
    assert [watch.update(step, {"accuracy": 1.0, "loss": loss}) for step, loss in enumerate(losses)] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert (watch.value, watch.step, watch.should_stop) == (1.0, 2, True)
    resumed = BestWatch("accuracy", "max", patience=2)
    resumed.restore(watch.state())
    assert resumed == watch
    assert resumed.update(5, {"accuracy": 1.0, "loss": 0.2})


def test_of_equal_values_without_a_loss_the_first_stays_the_best():
    watch = BestWatch("score", "min")
    assert [watch.update(step, {"score": 1.0}) for step in range(2)] == [True, False]
    old = {name: value for name, value in watch.state().items() if name != "best_loss"}  # as before it was kept
    watch.restore(old)
    assert not watch.update(2, {"score": 1.0, "loss": 0.1})
