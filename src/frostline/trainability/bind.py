"""Carries a plan's decisions over a step that may have replaced parameters (DESIGN section 2).

Known paths keep their decision; what a path unknown to the plan gets is in `added.py`. A path that vanished must have a
replacement below the same parent, or belong to another stage of a pipeline. Mutates nothing, communicates nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from frostline.config.wording import shorten_names
from frostline.errors import PlanMismatchError, Problem
from frostline.trainability.added import decide_added
from frostline.trainability.decision import Decision
from frostline.tree import ModuleTree, is_trainable_dtype

if TYPE_CHECKING:
    from frostline.trainability.plan import TrainabilityPlan

_MAX_NAMES = 5


@dataclass(frozen=True)
class _Step:
    """What `bind` compares: the plan, the model's tree now, and the name of what happened in between."""

    plan: TrainabilityPlan
    tree: ModuleTree
    name: str
    problems: list[Problem] = field(default_factory=list[Problem])

    @cached_property
    def packed_before(self) -> frozenset[str]:
        """What notes of the plan say that an earlier step has packed."""
        return frozenset(note.rpartition(": ")[2] for note in self.plan.notes if note.startswith("packed by"))

    def refuse(self, what: str, possible: str, fix: str) -> None:
        self.problems.append(Problem(what, f"bind after {self.name}", possible, fix))


def bind_decisions(
    plan: TrainabilityPlan, tree: ModuleTree, step: str, *, stage: bool = False
) -> tuple[tuple[Decision, ...], tuple[str, ...]]:
    """Decisions for `tree`, and notes on what `step` added, packed or untied.

    Args:
        stage: the tree is one stage of a pipeline; what it lacks belongs to another.

    Raises:
        PlanMismatchError: with all faults: planned parameters vanished without a replacement, one has another shape or
            is to train with a dtype that cannot, ties and decisions contradict each other.
    """
    held = _Step(plan, tree, step)
    added = [index for index, ref in enumerate(tree.params) if ref.path not in plan.decisions]
    packed_away = _find_vanished(held, added, stage)
    verdicts = decide_added(plan, tree, added, step, stage=stage)
    notes = [f"added by {step}: {_listed(tree.params[index].path for index in added)}"] if added else []
    if packed_away:
        notes.append(f"packed into buffers by {step}: {_listed(packed_away)}")
    repeated = {index for indices in tree.names_of_tensor.values() for index in indices[1:]}
    decisions = [
        _decision_of(held, index, verdicts, notes) for index in range(len(tree.params)) if index not in repeated
    ]
    _find_broken_ties(held, decisions, notes)
    if held.problems:
        raise PlanMismatchError.from_problems(held.problems)
    return tuple(decisions), tuple(notes)


def held_by(plan: TrainabilityPlan, tree: ModuleTree) -> frozenset[str]:
    """Planned paths that `tree` holds, under one of their names or through a replacement below the same parent."""
    names = {ref.path for ref in tree.params}
    places = _places_of(path for path in names if path not in plan.decisions)
    return frozenset(
        entry.path
        for entry in plan.decisions.values()
        if any(name in names for name in (entry.path, *entry.aliases)) or _parent(entry.path) in places
    )


def _decision_of(held: _Step, index: int, verdicts: Mapping[int, Decision], notes: list[str]) -> Decision:
    ref = held.tree.params[index]
    names = held.tree.names_of_tensor.get(index, (index,))
    chosen = _agreed(held, names, verdicts)
    aliases = tuple(held.tree.params[other].path for other in names[1:])
    can_train = is_trainable_dtype(ref.dtype)
    if chosen.trains and not can_train:
        held.refuse(
            f"{ref.path} is to train, but its dtype is {ref.dtype_name} now",
            "floating-point parameters train; integer and packed ones cannot",
            f"freeze it, or leave it out of {held.name}",
        )
    elif chosen.shape != ref.shape and can_train:
        held.refuse(
            f"{ref.path} has shape {list(ref.shape)}, but the plan was made for {list(chosen.shape)}",
            "steps that keep the global shape of a parameter",
            "make the plan after the step that resizes the model",
        )
    elif chosen.shape != ref.shape:
        what = f"{ref.path} ({ref.dtype_name} {list(ref.shape)})"
        if what not in held.packed_before:
            notes.append(f"packed by {held.name}: {what}")
    return chosen._replace(path=ref.path, aliases=aliases)


def _agreed(held: _Step, names: Sequence[int], verdicts: Mapping[int, Decision]) -> Decision:
    """The one decision for a tensor with these names: a planned or explicit one counts before the flag it came with."""
    planned = held.plan.decisions
    paths = {index: held.tree.params[index].path for index in names}
    known = {path: planned.get(path) or verdicts[index] for index, path in paths.items()}
    firm = {path: decision for path, decision in known.items() if path in planned or decision.rule.is_explicit}
    if len({decision.trains for decision in firm.values()}) > 1:
        held.refuse(
            f"{' and '.join(firm)} are one tensor now, but the plan both freezes and trains it",
            "the rules that disagree:\n" + "\n".join(f"{path}: {entry.rule}" for path, entry in firm.items()),
            "make the plan after the weights were tied",
        )
    return next(iter(firm.values()), next(iter(known.values())))


def _find_vanished(held: _Step, added: Sequence[int], stage: bool) -> list[str]:
    """Refuse planned parameters that are gone without a replacement; returns frozen ones that became packed buffers."""
    tree = held.tree
    names, places = {ref.path for ref in tree.params}, _places_of(tree.params[index].path for index in added)
    packed = {tree.modules[buffer.owner].path for buffer in tree.buffers if not is_trainable_dtype(buffer.tensor.dtype)}
    gone: list[str] = []
    packed_away: list[str] = []
    for decision in held.plan.decisions.values():
        if any(name in names for name in (decision.path, *decision.aliases)):
            continue
        if _parent(decision.path) in places:
            continue
        if not decision.trains and decision.path.rpartition(".")[0] in packed:
            packed_away.append(decision.path)
        elif not stage:
            gone.append(decision.path)
    if gone:
        held.refuse(
            f"{len(gone)} planned parameters vanished: {_listed(gone)}",
            "a replacement below the same parent, or another stage of a pipeline",
            "make the plan after that step, or keep the module's path; for a stage of a pipeline: "
            "plan.bind(model, stage=True, group=...)",
        )
    return packed_away


def _places_of(added: Iterable[str]) -> set[str]:
    """Modules of which a parameter that vanished has a replacement: those with an added one anywhere below."""
    places: set[str] = set()
    for path in added:
        place = _parent(path)
        if not place:  # a parameter of the root is replaced there: below "" lies the whole model
            places.add(place)
        while place and place not in places:
            places.add(place)
            place = _parent(place)
    return places


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _find_broken_ties(held: _Step, decisions: Sequence[Decision], notes: list[str]) -> None:
    """One planned tensor that has become several: copies that train drift apart, frozen ones only cost memory."""
    pieces: dict[str, list[Decision]] = {}
    for decision in decisions:
        planned = held.plan.decisions.get(decision.path)
        if planned is not None and planned.aliases:
            pieces.setdefault(planned.path, []).append(decision)
    for parts in pieces.values():
        paths = [part.path for part in parts]
        if len(parts) > 1 and parts[0].trains:
            held.refuse(
                f"{' and '.join(paths)} were one tensor in the plan and are {len(parts)} now: they would train apart",
                "tied weights that stay one tensor; FSDP2 keeps those that one fully_shard call gets, tensor "
                "parallelism those that all names get the same style for",
                f"tie them again after {held.name} (`tie_weights()`), shard them together "
                "(`fully_shard([embedding, head])`), or freeze them",
            )
        elif len(parts) > 1:
            notes.append(f"untied by {held.name}, frozen: {', '.join(paths)}")


def _listed(paths: Iterable[str]) -> str:
    return shorten_names(list(paths), _MAX_NAMES)
