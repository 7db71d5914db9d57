"""Sends metrics to TensorBoard, Weights & Biases or MLflow, each an optional extra imported only when asked for.

Knows nothing of the loop. `metrics.jsonl` is always written; trackers come on top.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from frostline.config.models import TrackingConfig
from frostline.config.origin import Origin, Origins
from frostline.errors import ConfigError


class Tracker(Protocol):
    """Receives numbers; `step` counts optimizer steps done."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def open_trackers(
    config: TrackingConfig,
    run_dir: Path,
    settings: Mapping[str, Any],
    *,
    done: int = 0,
    origins: Origins | None = None,
) -> list[Tracker]:
    """The trackers that `config` turns on. `settings` is the run's config, shown beside the curves.

    `done` is where a resumed run continues: TensorBoard hides what it had recorded after that step; W&B and MLflow
    start a new run under the same name.

    Raises:
        ConfigError: the package of a tracker is not installed.
    """
    origins = (origins or Origins()).below("tracking")
    trackers: list[Tracker] = []
    if config.tensorboard:
        _require("tensorboard", "tensorboard", origins.at("tensorboard"))
        trackers.append(TensorBoardTracker(run_dir, done))
    if config.wandb:
        trackers.append(WandbTracker(_require("wandb", "wandb", origins.at("wandb")), run_dir, config.wandb, settings))
    if config.mlflow:
        trackers.append(
            MlflowTracker(_require("mlflow", "mlflow", origins.at("mlflow")), run_dir, config.mlflow, settings)
        )
    return trackers


class TensorBoardTracker:
    """Event files under `RUN/tensorboard`."""

    def __init__(self, run_dir: Path, done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # at the edge: needs the extra

        self._writer: Any = SummaryWriter(str(run_dir / "tensorboard"), purge_step=done + 1 if done else None)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandbTracker:
    """A W&B run named after the run folder; a mapping in the config goes to `wandb.init`."""

    def __init__(
        self, wandb: ModuleType, run_dir: Path, options: bool | Mapping[str, Any], settings: Mapping[str, Any]
    ) -> None:
        given = dict(options) if isinstance(options, Mapping) else {}
        arguments: dict[str, Any] = {"name": run_dir.name, "dir": str(run_dir), "config": dict(settings)} | given
        self._run: Any = wandb.init(**arguments)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class MlflowTracker:
    """An MLflow run named after the run folder.

    A mapping in the config goes to `mlflow.start_run`, but for `tracking_uri` and `experiment`, which are set first.
    """

    def __init__(
        self, mlflow: ModuleType, run_dir: Path, options: bool | Mapping[str, Any], settings: Mapping[str, Any]
    ) -> None:
        given = dict(options) if isinstance(options, Mapping) else {}
        self._mlflow: Any = mlflow
        if (uri := given.pop("tracking_uri", None)) is not None:
            self._mlflow.set_tracking_uri(uri)
        if (experiment := given.pop("experiment", None)) is not None:
            self._mlflow.set_experiment(experiment)
        self._mlflow.start_run(**({"run_name": run_dir.name} | given))
        self._mlflow.log_dict(dict(settings), "config.json")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(dict(values), step=step)

    def close(self) -> None:
        self._mlflow.end_run()


def _require(module: str, extra: str, origin: Origin) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"tracking with {module} needs a package that cannot be imported: {error}",
            where=origin,
            possible="metrics.jsonl is written in any case",
            fix=f"pip install 'frostline[{extra}]', or remove `tracking.{module}`",
        ) from None
