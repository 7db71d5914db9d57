"""Trackers: the real TensorBoard; W&B and MLflow through recorders of the calls that we make."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from frostline.config.models import TrackingConfig
from frostline.errors import ConfigError
from frostline.training.trackers import open_trackers


def test_nothing_is_tracked_unless_asked(tmp_path: Path):
    assert open_trackers(TrackingConfig(), tmp_path, {}) == []
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("default")
def test_tensorboard_writes_events_that_tensorboard_reads(tmp_path: Path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (tracker,) = open_trackers(TrackingConfig(tensorboard=True), tmp_path, {})
    tracker.log(1, {"train/loss": 0.5})
    tracker.log(2, {"train/loss": 0.25})
    tracker.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(1, 0.5), (2, 0.25)]


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_names_the_extra(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"pip install 'frostline\[{name}\]'"):
        open_trackers(TrackingConfig.model_validate({name: True}), tmp_path, {})


class Recorder(ModuleType):
    """Stands for a module, and for the run that `init` gives."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Recorder:
            self.calls.append((name, args, kwargs))
            return self

        if name.startswith("__"):
            raise AttributeError(name)
        return call


def test_wandb_options_go_to_init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    wandb = Recorder("wandb")
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    config = TrackingConfig(wandb={"project": "p", "name": "n"})
    (tracker,) = open_trackers(config, tmp_path, {"seed": 1})
    tracker.log(3, {"train/loss": 0.5})
    tracker.close()
    options = {"name": "n", "dir": str(tmp_path), "config": {"seed": 1}, "project": "p"}
    assert wandb.calls == [
        ("init", (), options),
        ("log", ({"train/loss": 0.5},), {"step": 3}),
        ("finish", (), {}),
    ]


def test_mlflow_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mlflow = Recorder("mlflow")
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    config = TrackingConfig(mlflow={"tracking_uri": "file:x", "experiment": "e", "description": "d"})
    (tracker,) = open_trackers(config, tmp_path, {"seed": 1})
    tracker.log(3, {"train/loss": 0.5})
    tracker.close()
    assert mlflow.calls == [
        ("set_tracking_uri", ("file:x",), {}),
        ("set_experiment", ("e",), {}),
        ("start_run", (), {"run_name": tmp_path.name, "description": "d"}),
        ("log_dict", ({"seed": 1}, "config.json"), {}),
        ("log_metrics", ({"train/loss": 0.5},), {"step": 3}),
        ("end_run", (), {}),
    ]
