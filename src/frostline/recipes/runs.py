"""Plan and train: from a config file to a run folder. The order is that of DESIGN section 2.

The plan is made in `planning.py`, a smoke run's config in `smoke.py`; `finished.py` opens what this leaves behind. The
loop itself is `frostline.training.train`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from frostline.checkpoint import BaseIdentity, Manifest, RunFolder, fingerprint_files, fingerprint_model
from frostline.checkpoint.atomic import disk_errors
from frostline.checkpoint.base_config import read_base_config
from frostline.checkpoint.peft_layout import require_no_extra_state
from frostline.config.load import LoadedConfig
from frostline.config.yaml_file import dump_yaml
from frostline.errors import PlanMismatchError, TrainingError
from frostline.integrations.hf_models.load import LoadedModel
from frostline.preparation import prepare
from frostline.recipes.assembly import Assembly
from frostline.recipes.config_checks import read_config
from frostline.recipes.method import method_of
from frostline.recipes.planning import PlannedRun, Say, plan_run
from frostline.recipes.resuming import CONFIG_FILE, require_nothing_lost, require_same_config
from frostline.recipes.row_use import check_rows
from frostline.recipes.smoke import shorten
from frostline.recipes.standing import describe_held_out
from frostline.recipes.steps import total_steps, with_steps
from frostline.trainability import TrainabilityPlan

if TYPE_CHECKING:
    from rich.console import Console

    from frostline.integrations.hf_models.build import MetaModel
    from frostline.integrations.hf_models.location import ModelLocation
    from frostline.training import TrainResult

__all__ = ["PLAN_FILE", "PlannedRun", "load_prepared", "method_of", "plan_run", "read_config", "shorten", "train_run"]

PLAN_FILE = "plan.json"


def load_prepared(
    loaded: LoadedConfig, assembly: Assembly, meta: MetaModel | None = None, *, like: BaseIdentity | None = None
) -> tuple[LoadedModel, TrainabilityPlan, BaseIdentity]:
    """The model with weights, adapters and flags; its plan; and which base it is.

    Args:
        like: the identity that it will be compared with, whose kind of fingerprint is made; None takes the config's.

    Raises:
        ModelError: the weights cannot be loaded as planned.
    """
    held = assembly.load_model(meta)
    _, plan = prepare(
        held.model,
        freeze_config=loaded.data.get("freeze_config"),
        peft=method_of(loaded),
        new=held.new,
        origins=loaded.origins,
    )
    kind = like.fingerprint_kind if like is not None else loaded.config.checkpoint.fingerprint
    base = BaseIdentity(
        name_or_path=assembly.location.name,
        revision=loaded.config.model.revision,
        fingerprint=_fingerprint(held, plan, full=kind in ("full", "model-full")),
        dtype=str(held.dtype).removeprefix("torch."),
        folder=_folder_of(assembly.location),
        config=read_base_config(held.files),
    )
    return held, plan, base


def _fingerprint(held: LoadedModel, plan: TrainabilityPlan, *, full: bool) -> str | None:
    """Of the files; a factory's model has none, so of the values that stay frozen, as of a model handed in."""
    if held.files:
        return fingerprint_files(held.files, full=full)
    kept = set(plan.kept)
    frozen = [path for path, entry in plan.decisions.items() if entry.kind != "adapter" and path not in kept]
    return fingerprint_model(held.model, frozen, full=full) if frozen else None


def _folder_of(location: ModelLocation) -> str | None:
    if location.kind != "folder" or location.path is None:
        return None
    return str(location.path.resolve())


def train_run(
    planned: PlannedRun,
    *,
    mode: Literal["new", "resume", "overwrite"] = "new",
    folder: Path | None = None,
    allow_plan_change: bool = False,
    console: Console | None = None,
    say: Say = lambda line: None,
) -> TrainResult:
    """Train what was planned and leave everything in the run folder; with `resume` go on from its newest checkpoint.

    Args:
        folder: instead of the config's `output_dir`.
        allow_plan_change: resume with another `freeze_config`; the adapters must be those of the checkpoint.

    Raises:
        FrostlineError: see `frostline.training.train`; a start that fails before its first checkpoint leaves nothing.
    """
    # Deferred: the plan of a config must not wait for the imports of the loop.
    from frostline.training import draw_curves, train

    loaded, assembly = planned.loaded, planned.assembly
    data = assembly.data
    assert data is not None
    # Before the folder is opened: with `overwrite` a model that cannot be loaded must not cost the earlier run.
    held, plan, base = load_prepared(loaded, assembly, planned.meta)
    if plan.digest != planned.plan.digest:
        raise PlanMismatchError(
            "the plan of the loaded model differs from the plan made before loading",
            where=assembly.location.where,
            possible="\n".join(planned.plan.diff(plan)[:8]),
            fix="report this model: its structure depends on its weights",
        )
    assert assembly.data is not None
    plan = with_steps(plan, loaded, assembly.data)
    require_no_extra_state(held.model, plan.in_phase(len(plan.phases)))  # before training what could not be saved
    named_by = "name_or_path" if loaded.config.model.factory is None else "factory"
    assembly.recipe.check_model(held.model, loaded.origins.at("model", named_by))
    for line in check_rows(held.model, plan, data.train.examples):
        say(line)
    with RunFolder.open(folder or loaded.run_folder, mode) as run:
        try:
            resume_from = run.latest()
            if resume_from is not None:
                require_same_config(run, loaded, allow_plan_change=allow_plan_change)
                if allow_plan_change:
                    require_nothing_lost(resume_from, plan)
                best = run.best()
                if best is not None and best != resume_from:  # it stays what the run has to show: whole, or no run
                    Manifest.read(best).verify_files(best)
                begun = Manifest.read(resume_from)
                if begun.base.fingerprint_kind != base.fingerprint_kind:  # the config may have changed that
                    full = begun.base.fingerprint_kind in ("full", "model-full")
                    base = replace(base, fingerprint=_fingerprint(held, plan, full=full))
                done, total = begun.step, total_steps(loaded, data)
                say(f"resuming from {resume_from}")
                if done >= total:
                    say("the run is complete already: nothing is left to train")
            elif mode == "resume":
                say(f"nothing to resume in {run.path}: starting at step 0")
            about = partial(_describe_run, run, loaded, plan, assembly)
            if resume_from is None:
                about()
            result = train(
                model=held.model,
                plan=plan,
                task=assembly.build_task(),
                train_examples=data.train.examples,
                validation_examples=data.validation.examples if data.validation is not None else None,
                config=loaded.config,
                run=run,
                base=base,
                origins=loaded.origins,
                # A resume that is refused must leave the run as it was: then these come with the first new checkpoint.
                extra_files=assembly.write_extras if resume_from is None else _first(about, assembly.write_extras),
                resume_from=resume_from,
                allow_plan_change=allow_plan_change,
                held_out=describe_held_out(data.held_out),
                console=console,
            )
            try:
                draw_curves(run.path)
            except TrainingError as error:  # the metrics have gone; the run is as good without a picture of them
                say(f"no curves.png: {error.problems[0].what}")
            return result
        except BaseException:
            run.discard_if_empty()
            raise


def _describe_run(run: RunFolder, loaded: LoadedConfig, plan: TrainabilityPlan, assembly: Assembly) -> None:
    run.write_text(CONFIG_FILE, dump_yaml(loaded.data))
    run.write_text(PLAN_FILE, plan.dumps())
    with disk_errors(run.path / "tokenizer"):
        assembly.tokenizer.save_pretrained(run.path / "tokenizer")


def _first(about: Callable[[], None], write: Callable[[Path], None]) -> Callable[[Path], None]:
    """`write`, with `about` before its first call."""
    waiting = [about]

    def both(directory: Path) -> None:
        while waiting:
            waiting.pop()()
        write(directory)

    return both
