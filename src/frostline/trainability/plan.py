"""`TrainabilityPlan`: the immutable answer to "what trains", and what it can do to a model.

The deciding lives in `resolve`, the surgery rules in `bind`, the comparison in `verify`, the screen in `report`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from frostline.errors import PlanMismatchError
from frostline.trainability.bind import bind_decisions
from frostline.trainability.decision import Decision, Rule
from frostline.trainability.mode import hold_in_eval
from frostline.trainability.phase_lines import phases_to_json
from frostline.trainability.phases import Phase, phase_at, place_phases
from frostline.trainability.report import render_plan
from frostline.trainability.rows import ModuleRow, module_rows
from frostline.trainability.rules import FreezeRules
from frostline.trainability.verify import diff_plans, verify_plan
from frostline.tree import ModuleTree, canonical_named_parameters, set_trainable, unwrap

if TYPE_CHECKING:
    from frostline.selectors import Selector
    from frostline.trainability.resolve import AdapterTargets

_ATTRIBUTE = "_frostline_plan"


class Decisions(Mapping[str, Decision]):
    """Path -> decision. Iterates over each tensor once (first name); look-up works under every name of a tied one."""

    def __init__(self, decisions: tuple[Decision, ...]) -> None:
        self._by_path = {decision.path: decision for decision in decisions}
        self._by_alias = {alias: decision for decision in decisions for alias in decision.aliases}

    def __getitem__(self, path: str) -> Decision:
        found = self._by_path.get(path)
        return found if found is not None else self._by_alias[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_path)

    def __len__(self) -> int:
        return len(self._by_path)


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
        digest: SHA-256 over paths, global shapes and the decisions of all phases; not over rules, notes or dtypes.
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
    ) -> None:
        if not 0 <= phase <= len(phases):
            raise PlanMismatchError(
                f"the plan has no phase {phase}",
                where="phase",
                possible=f"0 to {len(phases)}; 0 is the freeze_config itself",
                fix="correct the number",
            )
        self.phases, self.phase = phases, phase
        self._stages = (decisions, *(entry.decisions for entry in phases))
        decisions = self._stages[phase]
        self.decisions: Mapping[str, Decision] = Decisions(decisions)
        self.modules = modules
        self.rules = rules
        self.adapters = adapters
        self.notes = notes
        self.trainable: tuple[str, ...] = tuple(entry.path for entry in decisions if entry.trains)
        self.frozen: tuple[str, ...] = tuple(entry.path for entry in decisions if not entry.trains)
        ever, self._so_far = _trained_in(self._stages), _trained_in(self._stages[: phase + 1])
        self.ever_trained: tuple[str, ...] = tuple(entry.path for entry in decisions if entry.path in ever)
        self.never_trained: tuple[str, ...] = tuple(entry.path for entry in decisions if entry.path not in ever)
        self.kept: tuple[str, ...] = tuple(
            entry.path for entry in decisions if entry.path in self._so_far or entry.kind in ("adapter", "new")
        )

    @property
    def peft(self) -> bool:
        """Whether adapters are part of the plan (then the base is frozen unless thawed)."""
        return self.adapters is not None

    @property
    def frozen_mode(self) -> str:
        """`eval` or `train`: the mode of wholly frozen subtrees while training."""
        return self.rules.frozen_mode

    @cached_property
    def digest(self) -> str:
        """SHA-256 over sorted (path, global shape, trains), and what each phase changes, as hex."""
        lines = sorted(
            f"{entry.path}\t{'x'.join(map(str, entry.shape))}\t{int(entry.trains)}" for entry in self._stages[0]
        )
        for phase in self.phases:
            lines.append(f"phase\t{phase.at}")
            lines.extend(sorted(f"{path}\t1" for path in phase.thaws))
            lines.extend(sorted(f"{path}\t0" for path in phase.freezes))
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    @cached_property
    def frozen_roots(self) -> tuple[str, ...]:
        """Paths of the maximal subtrees that hold parameters of which none trains."""
        return self._roots_without(set(self.trainable))

    @cached_property
    def untouched_roots(self) -> tuple[str, ...]:
        """As `frozen_roots`, of which none has trained in any phase so far."""
        return self._roots_without(self._so_far)

    def _roots_without(self, paths: Collection[str]) -> tuple[str, ...]:
        """Paths of the maximal subtrees that hold parameters, but none of `paths` and no adapter."""
        total, trained = [0] * (len(self.modules) + 1), [0] * (len(self.modules) + 1)
        owner_of = {row.path: index for index, row in enumerate(self.modules)}
        for entry in self.decisions.values():
            for name in (entry.path, *entry.aliases):
                owner = _owner(name, owner_of)
                total[owner + 1] += 1
                trained[owner + 1] += int(entry.path in paths or entry.kind == "adapter")
        for index in range(len(self.modules)):
            total[index + 1] += total[index]
            trained[index + 1] += trained[index]
        roots: list[str] = []
        index = 0
        while index < len(self.modules):
            end = self.modules[index].end
            if trained[end] == trained[index] and total[end] > total[index]:
                roots.append(self.modules[index].path)
                index = end
            else:
                index += 1
        return tuple(roots)

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
        }
        return TrainabilityPlan(**{**held, **changes})

    def apply(self, model: nn.Module) -> None:
        """Set every flag of `model` as planned, hold wholly frozen subtrees in evaluation mode, attach the plan.

        Mutates `model`; `frostline.plan_of(model)` is this plan afterwards.

        Raises:
            PlanMismatchError: the model has other parameters than the plan.
        """
        params = dict(canonical_named_parameters(model, unique=True))
        unknown = [path for path in params if path not in self.decisions]
        gone = [path for path in self.decisions if path not in params]
        if unknown or gone:
            raise PlanMismatchError(
                f"the model has {len(unknown)} parameters unknown to the plan and lacks {len(gone)} of it",
                where="plan.apply",
                possible=f"unknown: {unknown[:5]}; gone: {gone[:5]}",
                fix="resolve the plan on this model, or call plan.bind(model) after the step that replaced parameters",
            )
        flags = {path: param.requires_grad for path, param in canonical_named_parameters(model)}
        attach_plan(model, self, {**flags, **(built_flags(model) or {})})
        for path, param in params.items():
            set_trainable(param, self.decisions[path].trains)
        hold_in_eval(model, self.frozen_roots if self.frozen_mode == "eval" else ())

    def bind(self, model: nn.Module, *, step: str = "the last step") -> TrainabilityPlan:
        """The plan for `model` after a step that may have replaced parameters (rules: `bind.py`).

        Sets the flags of `model` and attaches the new plan to it; `self` stays as it is.

        Raises:
            PlanMismatchError: a planned parameter vanished without a replacement, or has another shape.
        """
        tree = ModuleTree.from_model(model)
        decisions, note = bind_decisions(self.in_phase(0), tree, step)
        phases: list[Phase] = []
        for index, phase in enumerate(self.phases, start=1):
            before = phases[-1].decisions if phases else decisions
            later, _ = bind_decisions(self.in_phase(index), tree, step)
            phases.append(replace(Phase.from_decisions(phase.rules, before, later), step=phase.step))
        bound = self._with(
            decisions=decisions,
            modules=module_rows(tree),
            notes=self.notes + ((note,) if note else ()),
            phases=tuple(phases),
        )
        bound.apply(model)
        return bound

    def verify(self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Compare flags (and the optimizer's parameters, by identity) with the plan. Mutates nothing.

        Raises:
            PlanMismatchError: with all differences.
        """
        verify_plan(self, model, optimizer)

    def diff(self, other: TrainabilityPlan) -> list[str]:
        """One line for each parameter that `other` decides differently, has in another shape, or does not have."""
        return diff_plans(self.to_json(), other.to_json())

    def render(self, facts: Mapping[str, str] | None = None, *, width: int = 110) -> str:
        """The plan as a table for a terminal. `facts` adds lines that the model alone does not tell (data, steps)."""
        return render_plan(self, facts or {}, width=width)

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON-able data."""
        return {
            "format_version": 1,
            "digest": self.digest,
            "peft": self.adapters.label if self.adapters else None,
            "frozen_mode": self.frozen_mode,
            "num_trainable": self.num_trainable,
            "num_total": self.num_total,
            "notes": list(self.notes),
            **({"phase": self.phase, "phases": phases_to_json(self.phases)} if self.phases else {}),
            "parameters": {
                entry.path: {
                    "trains": entry.trains,
                    "rule": str(entry.rule),
                    "kind": entry.kind,
                    "shape": list(entry.shape),
                    "dtype": entry.dtype,
                    **({"aliases": list(entry.aliases)} if entry.aliases else {}),
                    **({"note": entry.note} if entry.note else {}),
                }
                for entry in self.decisions.values()
            },
        }

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


def _owner(name: str, owner_of: Mapping[str, int]) -> int:
    """Index of the module that holds parameter `name`; a planned adapter parameter counts for its base module."""
    path = name
    while path:
        path = path.rpartition(".")[0]
        if path in owner_of:
            return owner_of[path]
    return 0


@dataclass(frozen=True)
class _Attached:
    plan: TrainabilityPlan
    built_flags: Mapping[str, bool]


def attach_plan(model: nn.Module, plan: TrainabilityPlan, built_flags: Mapping[str, bool]) -> None:
    """Remember `plan` on the (unwrapped) model, with the flags that the model was built with."""
    unwrap(model).__dict__[_ATTRIBUTE] = _Attached(plan, built_flags)


def detach_plan(model: nn.Module) -> None:
    """Forget the plan of `model`, if it has one."""
    unwrap(model).__dict__.pop(_ATTRIBUTE, None)


def plan_of(model: nn.Module) -> TrainabilityPlan:
    """The plan that `prepare`, `plan.apply` or `plan.bind` put into force on `model` last.

    Raises:
        PlanMismatchError: the model has none.
    """
    held = unwrap(model).__dict__.get(_ATTRIBUTE)
    if not isinstance(held, _Attached):
        raise PlanMismatchError(
            "this model has no plan",
            where=type(unwrap(model)).__name__,
            possible="models that frostline.prepare returned",
            fix="call frostline.prepare(model, ...) first",
        )
    return held.plan


def built_flags(model: nn.Module) -> Mapping[str, bool] | None:
    """`requires_grad` by path as the model came, if a plan has changed it since; else None."""
    held = unwrap(model).__dict__.get(_ATTRIBUTE)
    return held.built_flags if isinstance(held, _Attached) else None
