"""Carries a plan's decisions over a step that may have replaced parameters (DESIGN section 2).

Known paths keep their decision. An unknown path is decided by the same selectors on the current tree; where none
reaches, it keeps its flag (full fine-tuning) or is frozen (PEFT) and is listed. A path that vanished must have a
replacement below the same parent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from frostline.errors import PlanMismatchError
from frostline.trainability.decision import Decision, Rule
from frostline.tree import ModuleTree, ParamRef

if TYPE_CHECKING:
    from frostline.trainability.plan import TrainabilityPlan


def bind_decisions(plan: TrainabilityPlan, tree: ModuleTree, step: str) -> tuple[tuple[Decision, ...], str]:
    """Decisions for `tree`, and a note that lists what `step` added (empty if nothing). Mutates nothing.

    Raises:
        PlanMismatchError: a planned parameter vanished without a replacement, has another shape, is to train with an
            integer dtype, or has become one tensor with a parameter that is decided differently.
    """
    names = {ref.path for ref in tree.params}
    added = [index for index, ref in enumerate(tree.params) if ref.path not in plan.decisions]
    _require_replacements(plan, names, {tree.params[index].path for index in added}, step)
    verdicts = _decide_added(plan, tree, added, step)
    repeated = {index for indices in tree.names_of_tensor.values() for index in indices[1:]}
    decisions: list[Decision] = []
    for index, ref in enumerate(tree.params):
        if index in repeated:
            continue
        known = plan.decisions.get(ref.path)
        if known is not None and known.shape != ref.shape:
            raise PlanMismatchError(
                f"{ref.path} has shape {list(ref.shape)}, but the plan was made for {list(known.shape)}",
                where=f"bind after {step}",
                possible="steps that keep the global shape of a parameter",
                fix="make the plan after the step that resizes the model",
            )
        names_here = tree.names_of_tensor.get(index, (index,))
        chosen = _agreed(plan, tree, names_here, verdicts, step)
        aliases = tuple(tree.params[other].path for other in names_here[1:])
        if chosen.trains and not (ref.dtype.is_floating_point or ref.dtype.is_complex):
            raise PlanMismatchError(
                f"{ref.path} is to train, but its dtype is {ref.dtype_name} now",
                where=f"bind after {step}",
                possible="floating-point parameters train; integer and packed ones cannot",
                fix=f"freeze it, or leave it out of {step}",
            )
        decisions.append(replace(chosen, path=ref.path, aliases=aliases))
    listed = [tree.params[index].path for index in added]
    more = f" and {len(listed) - 5} more" if len(listed) > 5 else ""
    return tuple(decisions), f"added by {step}: {', '.join(listed[:5])}{more}" if listed else ""


def _agreed(
    plan: TrainabilityPlan, tree: ModuleTree, names: Sequence[int], verdicts: Mapping[int, Decision], step: str
) -> Decision:
    """The one decision for a tensor with these names: a planned or explicit one counts before the flag it came with."""
    known = {tree.params[index].path: plan.decisions.get(tree.params[index].path) or verdicts[index] for index in names}
    firm = {path: decision for path, decision in known.items() if path in plan.decisions or decision.rule.is_explicit}
    if len({decision.trains for decision in firm.values()}) > 1:
        raise PlanMismatchError(
            f"{' and '.join(firm)} are one tensor now, but the plan both freezes and trains it",
            where=f"bind after {step}",
            possible="the rules that disagree:\n" + "\n".join(f"{path}: {entry.rule}" for path, entry in firm.items()),
            fix="make the plan after the weights were tied",
        )
    return next(iter(firm.values()), next(iter(known.values())))


def _require_replacements(plan: TrainabilityPlan, names: set[str], added: set[str], step: str) -> None:
    lost: list[str] = []
    for decision in plan.decisions.values():
        if any(name in names for name in (decision.path, *decision.aliases)):
            continue
        parent = decision.path.rpartition(".")[0]
        prefix = parent + "." if parent else ""
        if not any(path.startswith(prefix) for path in added):
            lost.append(decision.path)
    if lost:
        raise PlanMismatchError(
            f"{len(lost)} planned parameters vanished: {', '.join(lost[:5])}",
            where=f"bind after {step}",
            possible="a replacement below the same parent",
            fix="make the plan after that step, or keep the module's path",
        )


def _decide_added(plan: TrainabilityPlan, tree: ModuleTree, added: Sequence[int], step: str) -> Mapping[int, Decision]:
    verdicts: dict[int, Decision] = {}
    for index in added:
        ref = tree.params[index]
        verdicts[index] = _decision(ref, ref.requires_grad and not plan.peft, Rule("baseline", f"added by {step}"))
    if not added:
        return verdicts
    for selectors, trains in ((plan.rules.freeze, False), (plan.rules.unfreeze, True)):
        kind = "unfreeze" if trains else "freeze"
        for selector in selectors:
            if selector.has_rows:  # what trains of a table is laid over it when the model is prepared, never later
                continue
            chosen = selector.select(tree).params
            rule = Rule(kind, f"{kind}_modules {selector}", selector.origin, selector.selects_params)
            for index in added:
                if chosen[index]:
                    verdicts[index] = _decision(tree.params[index], trains, rule)
    return verdicts


def _decision(ref: ParamRef, trains: bool, rule: Rule) -> Decision:
    kind = "adapter" if ref.is_adapter else "base"
    return Decision(ref.path, trains, rule, "", ref.num_elements, ref.shape, ref.dtype_name, kind)
