"""Opens the folder of a run: its model with the trained part, to evaluate and to predict.

`runs.py` makes such a folder, `exporting.py` turns it into other formats.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from frostline.checkpoint import Manifest, RunFolder, load_checkpoint
from frostline.config.load import LoadedConfig
from frostline.data.rows import Rows
from frostline.errors import CheckpointError, DataError
from frostline.recipes.assembly import Assembly, assemble
from frostline.recipes.config_checks import read_config
from frostline.recipes.resuming import CONFIG_FILE
from frostline.recipes.runs import load_prepared
from frostline.recipes.standing import require_held_out
from frostline.trainability import TrainabilityPlan

if TYPE_CHECKING:
    from frostline.training.task import Autocast

Say = Callable[[str], None]


@dataclass(frozen=True)
class FinishedRun:
    """A run and one of its checkpoints; weights are read by `load_model`.

    Attributes:
        folder: the run folder, open for reading.
        checkpoint: the folder of the chosen checkpoint.
        loaded: the config that the run was made with.
        manifest: of the checkpoint.
    """

    folder: RunFolder
    checkpoint: Path
    loaded: LoadedConfig
    manifest: Manifest

    @classmethod
    def open(cls, path: str | Path, which: str = "best") -> FinishedRun:
        """The run at `path` with checkpoint `which`: `latest`, `step-N`, or `best` (the latest where none is best).

        Raises:
            CheckpointError: no run there, or no such checkpoint.
        """
        folder = RunFolder.read(path)
        if which == "best" and folder.best() is None:
            which = "latest"
        checkpoint = folder.find(which)
        file = folder.path / CONFIG_FILE
        if not file.is_file():
            raise CheckpointError(
                f"{folder.path} has no {CONFIG_FILE}",
                where=folder.path,
                possible="a run folder that `frostline train` made",
                fix="restore the file from the config that you trained with",
            )
        return cls(folder, checkpoint, read_config(file), Manifest.read(checkpoint))

    @property
    def trained_part(self) -> Path:
        """The folder `adapter/` of the checkpoint, or `trained/` of a run without adapters."""
        adapter = self.checkpoint / "adapter"
        return adapter if adapter.is_dir() else self.checkpoint / "trained"

    def assemble(self, *, with_data: bool, say: Say = lambda line: None) -> Assembly:
        """The parts of the run; with the labels that it was trained with."""
        return assemble(
            self.loaded.config,
            self.loaded.origins,
            checkpoint_part=self.trained_part,
            with_data=with_data,
            encode=False,  # what is scored is tokenized when it is: the training data, most of all, is not
            say=say,
        )

    def load_model(self, assembly: Assembly, device: torch.device) -> tuple[nn.Module, TrainabilityPlan]:
        """The base with the checkpoint's trained part, each in the dtype that it had in training, on `device`.

        In evaluation mode; compute with it under `autocast`.

        Raises:
            CheckpointError: another base, a damaged file, another plan.
        """
        from frostline.training.precision import convert_trained

        held, plan, base = load_prepared(self.loaded, assembly, like=self.manifest.base)
        convert_trained(held.model, plan, self.loaded.config.training, self.loaded.origins)
        model, plan = held.model, self._in_phase(plan)
        plan.apply(model)
        load_checkpoint(
            self.checkpoint, model=model, plan=plan, base=base, allow_plan_change=self._has_gone_on_with(plan)
        )
        return model.to(device).eval(), plan

    def _in_phase(self, plan: TrainabilityPlan) -> TrainabilityPlan:
        """`plan` in the phase that the checkpoint was written in; another plan is for `load_checkpoint` to refuse."""
        return plan.in_phase(self.manifest.phase) if self.manifest.phase <= len(plan.phases) else plan

    def _has_gone_on_with(self, plan: TrainabilityPlan) -> bool:
        """Whether the run was resumed with this other plan: then it trains what this checkpoint holds, and more."""
        newest = self.folder.latest()
        if newest is None or self.manifest.plan_digest == plan.digest:
            return False
        try:
            return Manifest.read(newest).plan_digest == plan.digest
        except CheckpointError:  # a damaged one says nothing of other checkpoints
            return False

    def autocast(self, device: torch.device) -> Autocast:
        """Makes the context in which the run computed: `with run.autocast(device)(): ...`"""
        from frostline.training.precision import autocast_for

        return autocast_for(self.loaded.config.training.precision, device)


@dataclass(frozen=True)
class Scores:
    """What an evaluation gave: the part of the data, its metrics, and a report to print (empty where there is none)."""

    part: str
    num_examples: int
    metrics: dict[str, float]
    report: str


def evaluate_run(
    run: FinishedRun,
    *,
    parts: Collection[str] = ("validation", "test"),
    loaded: LoadedConfig | None = None,
    say: Say = lambda line: None,
) -> list[Scores]:
    """Score the checkpoint on the validation and test data of its config, or of `loaded`, as far as `parts` names them.

    Raises:
        DataError: the config has neither, or they are not what the run held out.
        CheckpointError: see `FinishedRun.load_model`.
    """
    from frostline.training.device import resolve_device
    from frostline.training.evaluation import evaluate, scalars

    if loaded is not None:
        run = replace(run, loaded=loaded)
    assembly = run.assemble(with_data=True, say=say)
    assert assembly.data is not None
    config = run.loaded.config
    scored = {name: part for name, part in assembly.data.parts.items() if name in parts}
    if not scored:
        raise DataError(
            "there is nothing to evaluate on: the config has no validation and no test data",
            where=run.folder.path / CONFIG_FILE,
            possible="data.validation, data.test",
            fix="train with one of them, or use `frostline predict`",
        )
    require_held_out(run.checkpoint, assembly.data.held_out, scored)
    device = resolve_device(config.device, run.loaded.origins.at("device"))
    model, plan = run.load_model(assembly, device)
    task = assembly.build_task()
    score = partial(
        evaluate,
        model,
        plan,
        task,
        batch_size=config.evaluation.batch_size or config.training.micro_batch_size or config.training.batch_size,
        device=device,
        autocast=run.autocast(device),
    )
    found: list[Scores] = []
    for name, part in scored.items():
        metrics = score(part.examples)
        report = metrics.get("report")
        text = assembly.recipe.render_report(report) if report else ""
        found.append(Scores(name, len(part), scalars(metrics), text))
    return found


def predict_run(run: FinishedRun, rows: Rows, *, say: Say = lambda line: None, **options: Any) -> list[dict[str, Any]]:
    """`rows` with predictions added; `options` are the recipe's (`batch_size`, `max_new_tokens`).

    Raises:
        DataError: a column that the task needs is not there. CheckpointError: see `FinishedRun.load_model`.
    """
    from frostline.training.device import resolve_device

    assembly = run.assemble(with_data=False, say=say)
    device = resolve_device(run.loaded.config.device, run.loaded.origins.at("device"))
    model, _ = run.load_model(assembly, device)
    with run.autocast(device)():
        return assembly.predict(model, rows, **options)
