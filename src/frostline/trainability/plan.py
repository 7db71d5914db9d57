"""`TrainabilityPlan`: the immutable answer to "what trains", and what it can do to a model.

The deciding lives in `resolve`, the surgery rules in `bind`, the comparison in `verify`, the screen in `report`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from frostline.errors import PlanMismatchError
from frostline.trainability.bind import bind_decisions
from frostline.trainability.decision import Decision
from frostline.trainability.mode import hold_in_eval
from frostline.trainability.report import render_plan
from frostline.trainability.rows import ModuleRow, module_rows
from frostline.trainability.rules import FreezeRules
from frostline.trainability.trained_rows import show_rows
from frostline.trainability.verify import diff_plans, verify_plan
from frostline.tree import ModuleTree, canonical_named_parameters, set_trainable, unwrap

if TYPE_CHECKING:
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

    Attributes:
        decisions: path -> `Decision`, in definition order.
        trainable, frozen: paths of the tensors that train and that do not, each tensor under its first name.
        kept: paths that a checkpoint keeps: what trains, and adapters and new parameters even where they are frozen.
        notes: remarks for the reader.
        digest: SHA-256 over paths, global shapes and decisions; not over rules, notes or dtypes.
    """

    def __init__(
        self,
        *,
        decisions: tuple[Decision, ...],
        modules: tuple[ModuleRow, ...],
        rules: FreezeRules,
        adapters: AdapterTargets | None,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.decisions: Mapping[str, Decision] = Decisions(decisions)
        self.modules = modules
        self.rules = rules
        self.adapters = adapters
        self.notes = notes
        self.trainable: tuple[str, ...] = tuple(entry.path for entry in decisions if entry.trains)
        self.frozen: tuple[str, ...] = tuple(entry.path for entry in decisions if not entry.trains)
        self.kept: tuple[str, ...] = tuple(
            entry.path for entry in decisions if entry.trains or entry.kind in ("adapter", "new")
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
        """SHA-256 over sorted (path, global shape, trains, and the rows where not all train), as hex."""
        lines = sorted(
            f"{entry.path}\t{'x'.join(map(str, entry.shape))}\t{int(entry.trains)}"
            + (f"\trows {show_rows(entry.rows)}" if entry.rows is not None else "")
            for entry in self.decisions.values()
        )
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    @cached_property
    def frozen_roots(self) -> tuple[str, ...]:
        """Paths of the maximal subtrees that hold parameters of which none trains."""
        total, trained = [0] * (len(self.modules) + 1), [0] * (len(self.modules) + 1)
        owner_of = {row.path: index for index, row in enumerate(self.modules)}
        for entry in self.decisions.values():
            for name in (entry.path, *entry.aliases):
                owner = _owner(name, owner_of)
                total[owner + 1] += 1
                trained[owner + 1] += int(entry.trains or entry.kind == "adapter")
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
        decisions, note = bind_decisions(self, tree, step)
        bound = TrainabilityPlan(
            decisions=decisions,
            modules=module_rows(tree),
            rules=self.rules,
            adapters=self.adapters,
            notes=self.notes + ((note,) if note else ()),
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
            "parameters": {
                entry.path: {
                    "trains": entry.trains,
                    "rule": str(entry.rule),
                    "kind": entry.kind,
                    "shape": list(entry.shape),
                    "dtype": entry.dtype,
                    **({"aliases": list(entry.aliases)} if entry.aliases else {}),
                    **({"rows": show_rows(entry.rows)} if entry.rows is not None else {}),
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
