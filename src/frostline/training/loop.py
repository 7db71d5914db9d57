"""The training loop. Read `train` from top to bottom: it is the whole story, and every line of it has one file.

Knows nothing of tokenizers, recipes or configs beyond the models of `frostline.config`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from frostline.checkpoint import BaseIdentity, RunFolder, load_checkpoint, save_checkpoint
from frostline.config.models import Config
from frostline.config.origin import Origins
from frostline.trainability import Prover, TrainabilityPlan, set_training_mode
from frostline.training.batches import GlobalBatches, num_steps
from frostline.training.best import BestWatch, require_metric
from frostline.training.cadence import is_due
from frostline.training.device import resolve_device
from frostline.training.evaluation import evaluate, scalars
from frostline.training.gradient_checkpointing import enable_gradient_checkpointing
from frostline.training.metrics_log import truncate_to
from frostline.training.optimizer import build_optimizer
from frostline.training.phases import enter_phase_of, switch_phase
from frostline.training.precision import autocast_for, convert_trained
from frostline.training.progress import StepReport, open_progress
from frostline.training.reporting import Reporter, plan_change_lines
from frostline.training.schedule import build_schedule
from frostline.training.seeding import seed_everything
from frostline.training.state import TrainResult, TrainState, digest_of
from frostline.training.step import accumulate_gradients, clip_gradients, gradient_norm, require_finite
from frostline.training.task import Task
from frostline.training.trackers import open_trackers

METRICS_FILE = "metrics.jsonl"


def train(
    *,
    model: nn.Module,
    plan: TrainabilityPlan,
    task: Task,
    train_examples: Sequence[Any],
    validation_examples: Sequence[Any] | None,
    config: Config,
    run: RunFolder,
    base: BaseIdentity,
    origins: Origins | None = None,
    extra_files: Callable[[Path], None] | None = None,
    resume_from: Path | None = None,
    allow_plan_change: bool = False,
    held_out: Mapping[str, Any] | None = None,
    console: Console | None = None,
) -> TrainResult:
    """Trains what `plan` trains, in place, and leaves checkpoints and `metrics.jsonl` in `run`.

    Args:
        model: base loaded, adapters injected, plan applied; moved to the device of the config.
        plan: decides which parameters enter the optimizer and the checkpoints.
        task: collates, computes the loss and evaluates.
        train_examples, validation_examples: encoded examples; without validation nothing is evaluated.
        config: `training`, `optimizer`, `schedule`, `evaluation`, `checkpoint`, `tracking` and `device` are read.
        run: open for writing.
        base: identity of the frozen base, kept in every checkpoint.
        origins: where config values were written, for messages.
        extra_files: writes the tokenizer beside the trained part of every checkpoint.
        resume_from: checkpoint of this run to continue from, bit for bit as if it had never stopped.
        allow_plan_change: resume although the plan differs from the checkpoint's; what fits is loaded.
        held_out: kept in every checkpoint as it is: by what an evaluation finds the validation and test data again.
        console: where progress goes; standard error by default.

    Raises:
        ConfigError: a value does not fit this model, machine or data.
        TrainingError: loss or gradient is not finite, or the first steps contradict the plan.
        CheckpointError: a checkpoint cannot be written or does not belong to this run.
    """
    origins = origins or Origins()
    settings = config.training

    # ---- Set-up, in the one allowed order: model, optimizer, resume, verify.
    seed_everything(settings.seed, deterministic=settings.deterministic)
    device = resolve_device(config.device, origins.at("device"))
    model.to(device)
    convert_trained(model, plan, settings, origins)
    if settings.gradient_checkpointing == "all":
        enable_gradient_checkpointing(model, origins.at("training", "gradient_checkpointing"))
    plan = plan.bind(model, step="the set-up of the run")
    plan.verify(model)
    batches = GlobalBatches(
        train_examples,
        task,
        batch_size=settings.batch_size,
        micro_batch_size=settings.micro_batch_size,
        seed=settings.seed,
        device=device,
    )
    total_steps = num_steps(
        len(train_examples), settings.batch_size, epochs=settings.epochs, max_steps=settings.max_steps
    )
    plan = plan.place_phases(batches.steps_per_epoch, total_steps)
    schedule = build_schedule(config.schedule, total_steps=total_steps, phases=plan.phases, origins=origins)
    optimizer = build_optimizer(model, plan, config.optimizer, lr=config.learning_rate, origins=origins)
    watch = build_watch(config, task, origins) if validation_examples else None
    data = digest_of(train_examples, validation_examples)
    state = TrainState(batches.steps_per_epoch, len(train_examples), settings.batch_size, data, watch)
    state.held_out = dict(held_out or {})
    loaded = None
    if resume_from is not None:
        model, plan = enter_phase_of(resume_from, model, plan)
        loaded = load_checkpoint(
            resume_from, model=model, plan=plan, optimizer=optimizer, base=base, allow_plan_change=allow_plan_change
        )
        state.restore(loaded.progress, resume_from)
    plan.verify(model, optimizer)
    prover = None
    if settings.prove:
        same_as = loaded.progress if loaded is not None and not loaded.plan_changes else None
        waiting = same_as.get("waiting") if same_as is not None else None
        prover = Prover(model, plan, steps_per_epoch=batches.steps_per_epoch, done=state.done, waiting=waiting)
        state.hold_frozen(prover.frozen_digest, same_as, resume_from)

    # ---- What the run does besides stepping, with all that does not change bound once.
    autocast = autocast_for(settings.precision, device)
    due = partial(is_due, steps_per_epoch=batches.steps_per_epoch, total_steps=total_steps)
    validate = partial(
        evaluate,
        task=task,
        batch_size=config.evaluation.batch_size or batches.micro_batch_size,
        device=device,
        autocast=autocast,
    )
    save = partial(
        save_checkpoint,
        run,
        optimizer=optimizer,
        scheduler_state=schedule.state(),
        base=base,
        task_type=task.task_type,
        extra_files=extra_files,
        keep=config.checkpoint.keep,
    )
    truncate_to(run.path / METRICS_FILE, state.done if state.done else -1)  # -1: the evaluation at the start too
    trackers = open_trackers(
        config.tracking, run.path, config.model_dump(mode="json"), done=state.done, origins=origins
    )
    view = open_progress(console or Console(stderr=True), done=state.done, total_steps=total_steps, unit=task.unit)
    for line in plan_change_lines(loaded.plan_changes, optimizer) if loaded is not None else ():
        view.line(line)

    # ---- The run.
    report: Any = None
    proof = ""
    set_training_mode(model, plan)
    with Reporter(view, run.path / METRICS_FILE, trackers, task.unit) as reporter:
        evaluation = config.evaluation
        if watch and validation_examples and evaluation.at_start and evaluation.every != "never" and not state.done:
            started = time.perf_counter()
            metrics = validate(model, plan, examples=validation_examples, prover=prover)
            seconds = time.perf_counter() - started
            reporter.evaluation(0, 0.0, scalars(metrics), is_best=False, seconds=seconds)
        while state.done < total_steps and not state.stopped_early:
            started, step = time.perf_counter(), state.done
            model, plan, prover = switch_phase(step, model, plan, prover, reporter.line)
            lr = schedule.set_learning_rates(optimizer, step)
            batch = batches.at(step)
            loss = accumulate_gradients(model, task, batch, autocast)
            norm = gradient_norm(optimizer)
            if step + 1 < total_steps:
                batches.prepare(step + 1)  # host work, while the device still computes this step
            loss_value, norm_value = require_finite(
                loss, norm, step=step, optimizer=optimizer, last_checkpoint=run.latest
            )
            if prover is not None and prover.watching:
                prover.before_step(step, lr, optimizer)
            if settings.max_grad_norm is not None:
                clip_gradients(optimizer, settings.max_grad_norm, norm)
            optimizer.step()
            if prover is not None and prover.watching:
                prover.after_step()
            optimizer.zero_grad(set_to_none=True)
            seconds = time.perf_counter() - started
            state.done, state.seconds = step + 1, state.seconds + seconds
            reporter.step(StepReport(state.done, state.epoch, loss_value, lr, norm_value, batch.num_units, seconds))

            is_best = False
            if watch and validation_examples and due(evaluation.every, state.done):
                started = time.perf_counter()
                metrics = validate(model, plan, examples=validation_examples, prover=prover)
                state.metrics, report = scalars(metrics), metrics.get("report")
                is_best = watch.update(state.done, metrics, origins.at("evaluation", "best", "metric"))
                state.stopped_early = watch.should_stop
                seconds = time.perf_counter() - started
                reporter.evaluation(state.done, state.epoch, state.metrics, is_best=is_best, seconds=seconds)
                if state.stopped_early:
                    reporter.line(f"stopped early at step {state.done}: {watch.describe()}")
            if prover is not None and (state.stopped_early or state.done >= total_steps):
                proof = prover.final_check()  # before the last save: what it rejects must not become the latest
            if is_best or state.stopped_early or due(config.checkpoint.every, state.done):
                if prover is not None:
                    if not proof:
                        prover.before_save()
                    state.waiting = prover.waiting_for
                save(model=model, plan=plan, progress=state.progress(), is_best=is_best)

    if prover is not None and not proof:  # the run was complete already
        proof = prover.final_check()
    return TrainResult(
        steps=state.done,
        epochs=state.epoch,
        seconds=state.seconds,
        stopped_early=state.stopped_early,
        checkpoint=run.latest(),
        best_metric=watch.metric if watch else None,
        best_value=watch.value if watch else None,
        best_step=watch.step if watch else None,
        last_metrics=state.metrics,
        report=report,
        proof=proof,
        remarks=tuple(prover.remarks) if prover else (),
    )


def build_watch(config: Config, task: Task, origins: Origins) -> BestWatch:
    """Follows the metric that the config names, else the task's own.

    Raises:
        ConfigError: the task has no such metric.
    """
    best, stopping = config.evaluation.best, config.evaluation.early_stopping
    metric, mode = (best.metric, best.mode) if best else task.default_metric
    if best is not None:
        require_metric(metric, task.metric_names, origins.at("evaluation", "best", "metric"))
    return BestWatch(metric, mode, patience=stopping.patience if stopping else None)
