"""`TrainabilityPlan`: the immutable answer to "what trains", and what it can do to a model.

The deciding lives in `resolve`, the surgery rules in `bind`, the comparison in `verify`, the screen in `report`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from frostline.errors import PlanMismatchError
from frostline.trainability.apply import apply_plan
from frostline.trainability.bind import bind_decisions, held_by
from frostline.trainability.decision import Decision, Rule
from frostline.trainability.decisions import Decisions
from frostline.trainability.frozen_roots import find_frozen_roots
from frostline.trainability.phases.phase import Phase, phase_at, place_phases
from frostline.trainability.rows import ModuleRow, carried_modes, carried_rows
from frostline.trainability.rules import FreezeRules
from frostline.trainability.screen.as_json import plan_to_json
from frostline.trainability.screen.difference import diff_plans
from frostline.trainability.screen.forecast import Forecast, forecast_plan
from frostline.trainability.screen.page import render_page
from frostline.trainability.screen.report import render_plan
from frostline.trainability.together import agree
from frostline.trainability.trained_rows import show_rows
from frostline.trainability.verify import verify_plan
from frostline.trainability.wrapped import refuse_flat_parameters, require_fitting_wrappers
from frostline.tree import ModuleTree

if TYPE_CHECKING:
    from frostline.selectors import Selector
    from frostline.trainability.adapter_targets import AdapterTargets


class TrainabilityPlan:
    """The freeze config resolved against one model. Immutable; made by `frostline.resolve` or `frostline.prepare`.

    With phases it is the plan of the one in force: `in_phase` gives that of another.

    Attributes:
        decisions: path -> `Decision`, in definition order.
        trainable, frozen: paths of the tensors that train and that do not, each tensor under its first name.
        kept: paths that a checkpoint keeps: what has trained so far, and adapters and new parameters even where they
            are frozen.
        phases: what changes later; empty for most plans.
        phase: index of the phase in force: 0 for the block itself, N for `phases[N - 1]`.
        ever_trained, never_trained: paths that train in some phase, and in none.
        notes: remarks for the reader.
        whole: the plan of the whole model, where this one is of a stage of a pipeline; else this one.
        digest: that of `whole`: SHA-256 over paths, global shapes and the decisions of all phases; not over rules,
            notes or dtypes.
    """

    def __init__(
        self,
        *,
        decisions: tuple[Decision, ...],
        modules: tuple[ModuleRow, ...],
        rules: FreezeRules,
        adapters: AdapterTargets | None,
        notes: tuple[str, ...] = (),
        phases: tuple[Phase, ...] = (),
        phase: int = 0,
        whole: TrainabilityPlan | None = None,
    ) -> None:
        if not 0 <= phase <= len(phases):
            raise PlanMismatchError(
                f"the plan has no phase {phase}",
                where="phase",
                possible=f"0 to {len(phases)}; 0 is the freeze_config itself",
                fix="correct the number",
            )
        self._whole = whole
        self.phases, self.phase = phases, phase
        self._stages = (decisions, *(entry.decisions for entry in phases))
        decisions = self._stages[phase]
        self.decisions: Mapping[str, Decision] = Decisions(decisions)
        self.modules = modules
        self.rules = rules
        self.adapters = adapters
        self.notes = notes
        self.trainable: tuple[str, ...] = tuple([entry.path for entry in decisions if entry.trains])
        self.frozen: tuple[str, ...] = tuple([entry.path for entry in decisions if not entry.trains])
        ever, self._so_far = _trained_in(self._stages), _trained_in(self._stages[: phase + 1])
        self.ever_trained, self.never_trained = self.trainable, self.frozen
        if phases:
            self.ever_trained = tuple([entry.path for entry in decisions if entry.path in ever])
            self.never_trained = tuple([entry.path for entry in decisions if entry.path not in ever])
        self.kept: tuple[str, ...] = tuple(
            [e.path for e in decisions if e.trains or e.kind in ("adapter", "new") or e.path in self._so_far]
        )

    @property
    def peft(self) -> bool:
        """Whether adapters are part of the plan (then the base is frozen unless thawed)."""
        return self.adapters is not None

    @property
    def frozen_mode(self) -> str:
        """`eval` or `train`: the mode of wholly frozen subtrees while training, where no selector says another."""
        return self.rules.frozen_mode

    @property
    def whole(self) -> TrainabilityPlan:
        """The plan of the whole model, which all stages of a pipeline share; this one where there are no stages."""
        return self._whole if self._whole is not None else self

    @cached_property
    def digest(self) -> str:
        """SHA-256 over sorted (path, global shape, trains, rows) of the whole model, and what phases change, as hex."""
        if self._whole is not None:
            return self._whole.digest
        lines = sorted(
            f"{entry.path}\t{'x'.join(map(str, entry.shape))}\t{int(entry.trains)}"
            + (f"\trows {show_rows(entry.rows)}" if entry.rows is not None else "")
            for entry in self._stages[0]
        )
        for phase in self.phases:
            lines.append(f"phase\t{phase.at}")
            lines.extend(sorted(f"{path}\t1" for path in phase.thaws))
            lines.extend(sorted(f"{path}\t0" for path in phase.freezes))
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    @cached_property
    def frozen_roots(self) -> tuple[str, ...]:
        """Paths of the maximal wholly frozen subtrees that are held in evaluation mode; none where all follow."""
        modes = [self.phases[self.phase - 1].frozen_modes] if self.phase else []
        return find_frozen_roots(self.modules, self.decisions.values(), self.frozen_mode, modes=modes)

    @cached_property
    def untouched_roots(self) -> tuple[str, ...]:
        """As `frozen_roots`, of which none has trained, nor followed the model's mode, in any phase so far."""
        modes = [
            [row.frozen_mode for row in self.modules],
            *(entry.frozen_modes for entry in self.phases[: self.phase]),
        ]
        return find_frozen_roots(self.modules, self.decisions.values(), self.frozen_mode, self._so_far, modes)

    @cached_property
    def num_trainable(self) -> int:
        """Elements that train, each tensor once."""
        return sum(entry.num_elements for entry in self.decisions.values() if entry.trains)

    @cached_property
    def num_total(self) -> int:
        """Elements of the model with its adapters, each tensor once."""
        return sum(entry.num_elements for entry in self.decisions.values())

    def has_trained(self, path: str) -> bool:
        """Whether the tensor `path` trains in this phase or one before it."""
        return path in self._so_far

    @cached_property
    def trained_by(self) -> Mapping[str, Rule]:
        """Path of each parameter that trains in some phase -> the rule of the first one that trains it."""
        return {entry.path: entry.rule for stage in reversed(self._stages) for entry in stage if entry.trains}

    @property
    def overlays(self) -> tuple[tuple[tuple[Selector, ...], bool], ...]:
        """Selectors up to the phase in force, in the order in which they count, and whether they thaw."""
        blocks = (self.rules, *(entry.rules for entry in self.phases[: self.phase]))
        return tuple(pair for block in blocks for pair in ((block.freeze, False), (block.unfreeze, True)))

    def in_phase(self, index: int) -> TrainabilityPlan:
        """This plan with another phase in force: 0 is the block itself, N is `phases[N - 1]`. Same digest.

        Touches no model; `frostline.enter_phase` does.

        Raises:
            PlanMismatchError: there is no such phase.
        """
        return self if index == self.phase else self._with(phase=index)

    def place_phases(self, steps_per_epoch: int, total_steps: int | None = None) -> TrainabilityPlan:
        """This plan with the steps of phases that are written in epochs; a fraction is rounded up to a whole step.

        Args:
            total_steps: of the run, which every phase must begin in; None does not ask.

        Raises:
            ConfigError: a phase begins not later than the one before it, or behind the end of the run.
        """
        return self._with(phases=place_phases(self.phases, steps_per_epoch, total_steps)) if self.phases else self

    def phase_at(self, step: int) -> int:
        """Index of the phase in force at optimizer step `step` (from 0).

        Raises:
            PlanMismatchError: a phase is written in epochs and `place_phases` was not called.
        """
        return phase_at(self.phases, step)

    def _with(self, **changes: Any) -> TrainabilityPlan:
        held: dict[str, Any] = {
            "decisions": self._stages[0],
            "modules": self.modules,
            "rules": self.rules,
            "adapters": self.adapters,
            "notes": self.notes,
            "phases": self.phases,
            "phase": self.phase,
            "whole": self._whole,
        }
        return TrainabilityPlan(**{**held, **changes})

    def apply(self, model: nn.Module) -> None:
        """Set every flag of `model` as planned, hold wholly frozen subtrees in evaluation mode, attach the plan.

        Mutates `model`; `frostline.plan_of(model)` is this plan afterwards.

        Raises:
            PlanMismatchError: the model has other parameters than the plan, or is inside a wrapper that captured other
                flags (DDP).
        """
        apply_plan(self, model)

    def bind(
        self,
        model: nn.Module,
        *,
        step: str = "the last step",
        stage: bool = False,
        group: torch.distributed.ProcessGroup | None = None,
    ) -> TrainabilityPlan:
        """The plan for `model` after a step that may have replaced parameters (rules: `bind.py`).

        Sets the flags of `model` and attaches the new plan to it; `self` stays as it is.

        Args:
            step: what happened, for notes and messages.
            stage: `model` is one stage of a pipeline, and holds a part of the plan.
            group: processes that must have the same plan and fail together; of a pipeline, those of all its stages,
                which together must hold every planned parameter. None looks at this process alone.

        Distributed: collective over `group` where one is given; else local.

        Raises:
            PlanMismatchError: a planned parameter vanished without a replacement, has another shape or cannot train;
                ties or wrappers are at odds with the plan; another process of `group` failed or has another plan.
        """
        error: Exception | None = None
        held: frozenset[str] | None = None
        bound = self
        try:
            refuse_flat_parameters(model, f"bind after {step}")
            tree = ModuleTree.from_model(model)
            bound = self._bound_to(tree, step, stage=stage)
            require_fitting_wrappers(bound, model, f"bind after {step}")
            if bound._whole is not None:
                held = held_by(bound.whole, tree)
        except Exception as raised:
            if group is None:
                raise
            error = raised  # the other processes wait to hear of it
        if group is not None:
            agree(bound, group, error=error, held=held, where=f"bind after {step}")
        bound.apply(model)
        return bound

    def _bound_to(self, tree: ModuleTree, step: str, *, stage: bool) -> TrainabilityPlan:
        decisions, notes = bind_decisions(self.in_phase(0), tree, step, stage=stage)
        phases: list[Phase] = []
        for index, phase in enumerate(self.phases, start=1):
            before = phases[-1].decisions if phases else decisions
            later, _ = bind_decisions(self.in_phase(index), tree, step, stage=stage)
            modes = carried_modes(tree, self.modules, phase.frozen_modes)
            phases.append(replace(Phase.from_decisions(phase.rules, before, later, modes), step=phase.step))
        return self._with(
            decisions=decisions,
            modules=carried_rows(tree, self.modules),
            notes=self.notes + notes,
            phases=tuple(phases),
            whole=self.whole if stage else self._whole,
        )

    def verify(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        group: torch.distributed.ProcessGroup | None = None,
    ) -> None:
        """Compare flags, wrappers and the optimizer's parameters (by identity) with the plan. Mutates nothing.

        Distributed: collective over `group` where one is given, whose processes then fail together; else local.

        Raises:
            PlanMismatchError: with all differences.
        """
        error: Exception | None = None
        try:
            verify_plan(self, model, optimizer)
        except Exception as raised:
            if group is None:
                raise
            error = raised
        if group is not None:
            agree(self, group, error=error, where="plan.verify")

    def diff(self, other: TrainabilityPlan) -> list[str]:
        """One line for each parameter that `other` decides differently, has in another shape, or does not have."""
        return [str(line) for line in diff_plans(self.to_json(), other.to_json())]

    def forecast(
        self,
        *,
        dp_replicate_size: int = 1,
        dp_shard_size: int = 1,
        tp_size: int = 1,
        optimizer: str = "adamw",
        momentum: float = 0.0,
        trained_as: Mapping[str, str] | None = None,
        tp_plan: Mapping[str, str] | None = None,
    ) -> Forecast:
        """Bytes of weights, gradients and optimizer state on the fullest device of a group.

        FSDP2 splits every parameter along dim 0 into `dp_shard_size` shards, padded to the size of the first; DDP
        (`dp_replicate_size`) splits nothing; tensor parallelism splits the two-dimensional weights of linears and
        tables where `tp_size` divides them, and leaves the rest whole (`Forecast.placements` tells it path by path).

        Args:
            optimizer: a name of the config's `optimizer.name`; `momentum` is that of sgd and rmsprop.
            trained_as: dtype of a parameter as loaded -> dtype that it trains in.
            tp_plan: path with `*` for numbers -> `colwise` or `rowwise`, as transformers models carry it. None takes
                the rule of pairs: the second linear of a pair (`o_proj`, `down_proj`, ...) and tables by row, others
                by column.

        Raises:
            ConfigError: a size below 1, or an optimizer that is not known.
        """
        return forecast_plan(
            self,
            dp_replicate_size=dp_replicate_size,
            dp_shard_size=dp_shard_size,
            tp_size=tp_size,
            optimizer=optimizer,
            momentum=momentum,
            trained_as=trained_as,
            tp_plan=tp_plan,
        )

    def render(
        self,
        facts: Mapping[str, str] | None = None,
        *,
        width: int = 110,
        memory: Forecast | None = None,
        devices: Forecast | None = None,
    ) -> str:
        """The plan as a table for a terminal.

        Args:
            facts: lines that the model alone does not tell (data, steps); `optimizer` names the optimizer as shown.
            memory: bytes on one device; None takes the facts' optimizer, and the dtypes that the parameters have.
            devices: bytes on each device of a group, for a line of its own.

        Raises:
            ConfigError: the bytes of the facts' optimizer are not known.
        """
        facts = facts or {}
        memory = memory or self.forecast(optimizer=facts.get("optimizer", "adamw").lower())
        return render_plan(self, facts, width=width, memory=memory, devices=devices)

    def to_html(
        self,
        facts: Mapping[str, str] | None = None,
        *,
        title: str = "model",
        memory: Forecast | None = None,
        devices: Forecast | None = None,
    ) -> str:
        """The plan as one self-contained page with a folded, zoomable picture of the model; arguments as `render`."""
        facts = facts or {}
        memory = memory or self.forecast(optimizer=facts.get("optimizer", "adamw").lower())
        return render_page(self, facts, title=title, memory=memory, devices=devices)

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON-able data."""
        return plan_to_json(self)

    def dumps(self) -> str:
        """`to_json` as text, one parameter a line kept readable by indentation."""
        return json.dumps(self.to_json(), indent=1) + "\n"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrainabilityPlan) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<TrainabilityPlan {self.digest[:8]}: {len(self.trainable)} of {len(self.decisions)} tensors train>"


def _trained_in(stages: Sequence[tuple[Decision, ...]]) -> frozenset[str]:
    """Paths that train in one of `stages`."""
    return frozenset(entry.path for stage in stages for entry in stage if entry.trains)
