"""From a config to a plan on the meta device, without weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from frostline.config.load import LoadedConfig
from frostline.errors import FrostlineError
from frostline.preparation import resolve
from frostline.recipes.assembly import Assembly, assemble
from frostline.recipes.factory_models import count_data, factory_of, lacking, refuse_lacking
from frostline.recipes.facts import facts_of, loads_in
from frostline.recipes.method import method_of
from frostline.recipes.registry import find_recipe
from frostline.recipes.steps import steps_per_epoch, total_steps, with_steps
from frostline.trainability import Forecast, TrainabilityPlan, parse_freeze_config
from frostline.trainability.phases.phase import placing_problems
from frostline.training.best import require_metric
from frostline.training.precision import trained_as

if TYPE_CHECKING:
    from frostline.integrations.hf_models.build import MetaModel
    from frostline.recipes.recipe import PreparedData

Say = Callable[[str], None]


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
    facts = facts_of(loaded, assembly.data, plan, notes=meta.notes, loads_in=loads_in(assembly, meta, plan, loaded))
    return PlannedRun(loaded, assembly, meta, plan, facts, _forecast(loaded, meta, plan))


def _resolve(loaded: LoadedConfig, meta: MetaModel, data: PreparedData) -> TrainabilityPlan:
    """The plan with its phases placed; phases out of order are told together with what the model refuses."""
    block = loaded.data.get("freeze_config")
    try:
        plan = resolve(meta.model, freeze_config=block, peft=method_of(loaded), new=meta.new, origins=loaded.origins)
    except FrostlineError as error:
        rules = parse_freeze_config(block, loaded.origins.below("freeze_config"))
        misplaced = placing_problems(rules.phases, steps_per_epoch(loaded, data), total_steps(loaded, data))
        raise type(error).from_problems([*error.problems, *misplaced]) from None
    return with_steps(plan, loaded, data)


def _plan_only(loaded: LoadedConfig, meta: MetaModel, missing: Sequence[str]) -> PlannedRun:
    """The plan of a model that the recipe cannot train as things are, and what is missing for that."""
    find_recipe(loaded.config.recipe, loaded.origins.at("recipe"))
    data = count_data(loaded.config, loaded.origins)
    plan = _resolve(loaded, meta, data)
    notes = [*meta.notes, f"`frostline train` would need {'; '.join(missing)}"]
    return PlannedRun(
        loaded, None, meta, plan, facts_of(loaded, data, plan, notes=notes), _forecast(loaded, meta, plan)
    )


def _forecast(loaded: LoadedConfig, meta: MetaModel, plan: TrainabilityPlan, **sizes: int) -> Forecast:
    config = loaded.config
    return plan.forecast(
        **sizes,
        optimizer=config.optimizer.name,
        momentum=config.optimizer.momentum,
        trained_as=trained_as(config.training),
        tp_plan=getattr(meta.model, "_tp_plan", None) or None,  # transformers' own
    )
