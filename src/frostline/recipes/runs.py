"""Plan and train: from a config file to a run folder. The order is that of DESIGN section 2.

Read with `finished.py`, which opens what this leaves behind. The loop itself is `frostline.training.train`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from frostline.adapters import PEFT, parse_method
from frostline.checkpoint import BaseIdentity, Manifest, RunFolder, fingerprint_files, fingerprint_model, plan_layout
from frostline.checkpoint.atomic import disk_errors
from frostline.checkpoint.base_config import read_base_config
from frostline.checkpoint.peft_layout import OTHERWISE, require_no_extra_state
from frostline.config.load import LoadedConfig
from frostline.config.yaml_file import dump_yaml
from frostline.errors import FrostlineError, PlanMismatchError, TrainingError
from frostline.integrations.hf_models.load import LoadedModel
from frostline.preparation import prepare, resolve
from frostline.recipes.assembly import Assembly, assemble
from frostline.recipes.config_checks import read_config
from frostline.recipes.factory_models import count_data, factory_of, lacking, refuse_lacking
from frostline.recipes.registry import find_recipe
from frostline.recipes.resuming import CONFIG_FILE, require_nothing_lost, require_same_config
from frostline.recipes.standing import describe_held_out
from frostline.trainability import Forecast, TrainabilityPlan, parse_freeze_config
from frostline.trainability.phases.phase import placing_problems
from frostline.trainability.screen.backward import backward_reaches
from frostline.training.batches import num_steps
from frostline.training.best import require_metric
from frostline.training.precision import trained_as
from frostline.training.schedule import build_schedule

if TYPE_CHECKING:
    from rich.console import Console

    from frostline.integrations.hf_models.build import MetaModel
    from frostline.integrations.hf_models.location import ModelLocation
    from frostline.recipes.recipe import PreparedData
    from frostline.training import TrainResult

__all__ = ["PLAN_FILE", "PlannedRun", "load_prepared", "method_of", "plan_run", "read_config", "shorten", "train_run"]

Say = Callable[[str], None]
PLAN_FILE = "plan.json"


@dataclass(frozen=True)
class PlannedRun:
    """A config, resolved as far as it goes without weights.

    Attributes:
        loaded: the config and where its values stand.
        parts: recipe, tokenizer, data, head; None where the recipe cannot train what a factory builds.
        meta: the model without weights.
        plan: what trains.
        facts: lines for the plan's screen that the model alone does not tell.
        memory: bytes of weights, gradients and optimizer state on one device.
    """

    loaded: LoadedConfig
    parts: Assembly | None
    meta: MetaModel
    plan: TrainabilityPlan
    facts: Mapping[str, str]
    memory: Forecast

    @property
    def assembly(self) -> Assembly:
        """What a run is made of.

        Raises:
            ModelError: there is only a plan; it says what is missing for a run.
        """
        if self.parts is None:
            config = self.loaded.config
            refuse_lacking(config, self.loaded.origins, lacking(self.meta.model, config))
        return self.parts

    def render(self, *, width: int = 110, devices: Forecast | None = None) -> str:
        """The first screen: table, sums, data, steps, notes; with `devices` the bytes on each of a group."""
        return self.plan.render(self.facts, width=width, memory=self.memory, devices=devices)

    def at_step(self, step: int) -> PlannedRun:
        """The same run, looked at before optimizer step `step`: with the phase in force that is in force there."""
        return replace(self, plan=self.plan.in_phase(self.plan.phase_at(step)))

    def forecast(self, *, dp_replicate_size: int = 1, dp_shard_size: int = 1, tp_size: int = 1) -> Forecast:
        """Bytes on each device of a group, for this config's optimizer and number formats.

        Tensor parallelism follows the plan that transformers has for the model, where it has one.
        """
        return _forecast(
            self.loaded,
            self.meta,
            self.plan,
            dp_replicate_size=dp_replicate_size,
            dp_shard_size=dp_shard_size,
            tp_size=tp_size,
        )


def plan_run(loaded: LoadedConfig, *, encode: bool = True, say: Say = lambda line: None) -> PlannedRun:
    """Resolve the plan on the meta device: reads data, tokenizer and the headers of the weight files, no weights.

    Args:
        encode: False tokenizes only where the number of examples depends on it.
        say: is told of slow work before it starts.

    Raises:
        FrostlineError: anything wrong with model, data, selectors or adapters.
    """
    config = loaded.config
    factory = factory_of(config, loaded.origins)
    built = factory.build_meta() if factory is not None else None
    if built is not None and not encode and (missing := lacking(built.model, config)):
        return _plan_only(loaded, built, missing)
    assembly = assemble(config, loaded.origins, encode=encode, say=say, factory_model=built)
    if config.evaluation.best is not None:
        names = assembly.build_task().metric_names
        require_metric(config.evaluation.best.metric, names, loaded.origins.at("evaluation", "best", "metric"))
    meta = assembly.build_meta_model()
    assert assembly.data is not None
    plan = _resolve(loaded, meta, assembly.data)
    facts = _facts(loaded, assembly.data, plan, notes=meta.notes, loads_in=_loads_in(assembly, meta, plan, loaded))
    return PlannedRun(loaded, assembly, meta, plan, facts, _forecast(loaded, meta, plan))


def _resolve(loaded: LoadedConfig, meta: MetaModel, data: PreparedData) -> TrainabilityPlan:
    """The plan with its phases placed; phases out of order are told together with what the model refuses."""
    block = loaded.data.get("freeze_config")
    try:
        plan = resolve(meta.model, freeze_config=block, peft=method_of(loaded), new=meta.new, origins=loaded.origins)
    except FrostlineError as error:
        rules = parse_freeze_config(block, loaded.origins.below("freeze_config"))
        misplaced = placing_problems(rules.phases, _steps_per_epoch(loaded, data), _num_steps(loaded, data))
        raise type(error).from_problems([*error.problems, *misplaced]) from None
    return _with_steps(plan, loaded, data)


def _plan_only(loaded: LoadedConfig, meta: MetaModel, missing: Sequence[str]) -> PlannedRun:
    """The plan of a model that the recipe cannot train as things are, and what is missing for that."""
    find_recipe(loaded.config.recipe, loaded.origins.at("recipe"))
    data = count_data(loaded.config, loaded.origins)
    plan = _resolve(loaded, meta, data)
    notes = [*meta.notes, f"`frostline train` would need {'; '.join(missing)}"]
    return PlannedRun(loaded, None, meta, plan, _facts(loaded, data, plan, notes=notes), _forecast(loaded, meta, plan))


def method_of(loaded: LoadedConfig) -> PEFT | None:
    """The PEFT method of the config, its initial values seeded by `training.seed`; None without a `peft` block."""
    block = loaded.data.get("peft")
    if block is None:
        return None
    return parse_method(block, loaded.origins.below("peft")).seeded(loaded.config.training.seed)


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
    plan = _with_steps(plan, loaded, assembly.data)
    require_no_extra_state(held.model, plan.in_phase(len(plan.phases)))  # before training what could not be saved
    named_by = "name_or_path" if loaded.config.model.factory is None else "factory"
    assembly.recipe.check_model(held.model, loaded.origins.at("model", named_by))
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
                done, total = begun.step, _num_steps(loaded, data)
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


def shorten(loaded: LoadedConfig) -> LoadedConfig:
    """The config of a smoke run: two steps, the examples that they take, few to validate on, the rest as it is.

    With phases, one step before them and one in each.

    Sources are still read whole: labels and duplicates are those of the real run. `class_weights: balanced` counts all
    training examples, so all of them stay.
    """
    config = loaded.config
    phases = config.freeze_config.phases if config.freeze_config is not None else ()
    steps = 1 + max(1, len(phases))
    num_train = steps * config.training.batch_size
    if config.training.class_weights == "balanced":
        max_examples = config.data.max_examples
    else:
        max_examples = min(config.data.max_examples or num_train, num_train)
    warmup = config.schedule.warmup
    validation = min(config.evaluation.max_examples or 32, 32)
    return replace(
        loaded,
        data=_one_step_a_phase(loaded.data),
        config=config.model_copy(
            update={
                "training": config.training.model_copy(update={"epochs": None, "max_steps": steps}),
                "data": config.data.model_copy(update={"max_examples": max_examples}),
                "schedule": config.schedule.model_copy(
                    update={"warmup": min(warmup, 1) if isinstance(warmup, int) else warmup}
                ),
                "evaluation": config.evaluation.model_copy(
                    update={"every": "epoch", "max_examples": validation, "early_stopping": None}
                ),
            }
        ),
    )


def _one_step_a_phase(data: dict[str, Any]) -> dict[str, Any]:
    block: dict[str, Any] = data.get("freeze_config") or {}
    if not block.get("phases"):
        return data
    phases = [{**phase, "at": {"step": number}} for number, phase in enumerate(block["phases"], start=1)]
    return {**data, "freeze_config": {**block, "phases": phases}}


def _with_steps(plan: TrainabilityPlan, loaded: LoadedConfig, data: PreparedData) -> TrainabilityPlan:
    """`plan` with the steps at which its phases begin, which must lie inside the run."""
    return plan.place_phases(_steps_per_epoch(loaded, data), _num_steps(loaded, data))


def _steps_per_epoch(loaded: LoadedConfig, data: PreparedData) -> int:
    return math.ceil(len(data.train) / loaded.config.training.batch_size)


def _num_steps(loaded: LoadedConfig, data: PreparedData) -> int:
    training = loaded.config.training
    return num_steps(len(data.train), training.batch_size, epochs=training.epochs, max_steps=training.max_steps)


def _facts(
    loaded: LoadedConfig, data: PreparedData, plan: TrainabilityPlan, *, notes: Sequence[str], loads_in: str = ""
) -> dict[str, str]:
    config = loaded.config
    steps = _num_steps(loaded, data)
    # A warm-up that does not fit is said now.
    build_schedule(config.schedule, total_steps=steps, phases=plan.phases, origins=loaded.origins)
    length = _length(loaded, len(data.train), steps)
    rate = f"lr {config.learning_rate:g} {config.schedule.name}"
    facts = {
        "optimizer": _OPTIMIZERS.get(config.optimizer.name, config.optimizer.name),
        "data": data.summary if loads_in else data.summary.partition(";")[0],  # `--data N` needs a tokenizer
        **({"labels": data.label_summary} if data.label_summary else {}),
        "steps": f"{steps:,} = {length}, {rate}; {_backward(plan)}",
        **({"loads in": loads_in} if loads_in else {}),
    }
    notes = [*notes, *data.notes]
    facts.update({f"note {index}" if index else "note": note for index, note in enumerate(notes)})
    return facts


def _length(loaded: LoadedConfig, num_examples: int, steps: int) -> str:
    """What `steps` is equal to: `800 / 32 x 1 epoch`, `4 epochs x 13 (196 / 16 rounded up)`."""
    training = loaded.config.training
    if training.max_steps:
        return f"{training.max_steps} (max_steps)"
    count = training.epochs or 1
    epochs = f"{count:g} epoch{'s' if count != 1 else ''}"
    per_epoch, size = math.ceil(num_examples / training.batch_size), f"{num_examples:,} / {training.batch_size}"
    divides = num_examples % training.batch_size == 0
    product = f"{size} x {epochs}" if divides else f"{epochs} x {per_epoch:,} ({size} rounded up)"
    return product if abs(per_epoch * count - steps) < 1e-6 else f"{product}, rounded up"


_OPTIMIZERS = {
    **{"adamw": "AdamW", "adam": "Adam", "nadam": "NAdam", "radam": "RAdam", "adamax": "Adamax", "sgd": "SGD"},
    **{"rmsprop": "RMSprop", "adagrad": "Adagrad", "adadelta": "Adadelta", "adafactor": "Adafactor"},
}
_VLLM_MAX_RANK = 512  # the largest value that vLLM's --max-lora-rank takes


def _forecast(loaded: LoadedConfig, meta: MetaModel, plan: TrainabilityPlan, **sizes: int) -> Forecast:
    config = loaded.config
    return plan.forecast(
        **sizes,
        optimizer=config.optimizer.name,
        momentum=config.optimizer.momentum,
        trained_as=trained_as(config.training),
        tp_plan=getattr(meta.model, "_tp_plan", None) or None,  # transformers' own
    )


def _backward(plan: TrainabilityPlan) -> str:
    """Where backward stops, in each phase that has it elsewhere than the one before."""
    ends = [backward_reaches(plan.in_phase(index)) for index in range(len(plan.phases) + 1)]
    places = [end for index, end in enumerate(ends) if index == 0 or end != ends[index - 1]]
    return f"backward reaches {', then '.join(places)}"


def _loads_in(assembly: Assembly, meta: MetaModel, plan: TrainabilityPlan, loaded: LoadedConfig) -> str:
    if assembly.location.kind == "factory":
        what = "the adapter in peft, on a model that the factory builds" if plan.peft else "no other tool by itself"
        return f"frostline, with the factory at hand; {what}"
    if not plan.peft:
        return "transformers after `frostline export --to merged`; peft no (no adapter)"
    prepare(
        meta.model,
        freeze_config=loaded.data.get("freeze_config"),
        peft=method_of(loaded),
        new=meta.new,
        origins=loaded.origins,
    )
    plan = plan.in_phase(len(plan.phases))  # when all has trained that ever does
    layout = plan_layout(meta.model, plan, task_type=assembly.task_type)
    in_full = [path for path in plan.kept if plan.decisions[path].kind not in ("adapter", "rows")]
    in_rows = [path for path in plan.kept if plan.decisions[path].kind == "rows"]
    peft = f"peft without {len(layout.inexpressible)} tensors" if layout.inexpressible else "peft"
    if any(note.startswith(OTHERWISE) for note in layout.notes):
        peft = "peft no (shared modules are adapted)"
    rank = int(layout.config["r"])
    if in_full:
        vllm = "vLLM no (modules trained in full)"
    elif in_rows:
        vllm = "vLLM no (trained rows)"
    elif layout.inexpressible or rank > _VLLM_MAX_RANK:
        vllm = "vLLM no " + (f"(rank above {_VLLM_MAX_RANK})" if rank > _VLLM_MAX_RANK else "(more than adapters)")
    else:
        vllm = "vLLM"
    return f"{peft}, transformers after merge; {vllm}"
