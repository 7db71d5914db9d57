"""What a parameter gets that the plan does not know, because a step of surgery or a wrapper added it.

The selectors of the plan decide again on the current tree. What stands for a planned parameter (a container for a
layer) has its decision. Else it keeps its flag, or is frozen beside adapters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from frostline.errors import SelectorError
from frostline.selectors import Selection, Selector
from frostline.trainability.conditional import find_conditional
from frostline.trainability.decision import Decision, Rule
from frostline.trainability.required import find_required
from frostline.trainability.rules import rule_of
from frostline.tree import ModuleTree, ParamRef

if TYPE_CHECKING:
    from frostline.trainability.plan import TrainabilityPlan


def decide_added(
    plan: TrainabilityPlan, tree: ModuleTree, added: Sequence[int], step: str, *, stage: bool = False
) -> Mapping[int, Decision]:
    """Index of each parameter in `added` -> its decision.

    Args:
        stage: the tree is one stage of a pipeline, so that positions in lists of blocks are not those of the plan.
    """
    verdicts: dict[int, Decision] = {}
    if not added:
        return verdicts
    for index in added:
        ref = tree.params[index]
        verdicts[index] = _decision(ref, ref.requires_grad and not plan.peft, Rule("baseline", f"added by {step}"))
    positional: list[Selector] = []  # selectors that cannot be asked again here
    thawing: list[tuple[Selector, Selection]] = []
    for selectors, trains in plan.overlays:
        for selector in selectors:
            if selector.has_rows:  # what trains of a table is laid over it when the model is prepared, never later
                continue
            if stage and _counts_positions(selector):
                positional.append(selector)
                continue
            try:
                selection = selector.select(tree)
            except SelectorError:  # the step took away what it counts on, such as the one list of blocks
                positional.append(selector)
                continue
            if trains:
                thawing.append((selector, selection))
            rule = rule_of(selector, trains=trains)
            for index in added:
                if selection.params[index]:
                    verdicts[index] = _decision(tree.params[index], trains, rule)
    _inherit(plan, tree, added, verdicts, _modules_by_position(plan, positional) if positional else {})
    required, conditional = find_required(tree).params, find_conditional(tree, thawing)
    for index in added:
        if index in required:
            verdicts[index] = _decision(tree.params[index], False, required[index].rule)
        elif conditional[index]:
            verdicts[index] = verdicts[index]._replace(conditional=True)
    return verdicts


def _inherit(
    plan: TrainabilityPlan,
    tree: ModuleTree,
    added: Sequence[int],
    verdicts: dict[int, Decision],
    by_position: Mapping[str, Decision],
) -> None:
    """Hand the decision of a parameter that vanished to what stands in its module's place now."""
    present = {ref.path for ref in tree.params}
    gone: dict[str, list[Decision]] = {}  # module -> decisions of its own parameters that vanished
    for decision in plan.decisions.values():
        if not any(name in present for name in (decision.path, *decision.aliases)):
            gone.setdefault(_parent(decision.path), []).append(decision)
    planned_modules = {row.path for row in plan.modules}
    for index in added:
        ref, verdict = tree.params[index], verdicts[index]
        place = _parent(ref.path)
        while place and place not in planned_modules:
            place = _parent(place)
        heir = _predecessor(ref.path, gone.get(place, ())) or by_position.get(place)
        if heir is None or heir.rule.kind == "baseline":
            continue
        if not verdict.rule.is_explicit or (heir.rule.kind == "unfreeze" and not verdict.trains):
            kind = "adapter" if ref.is_adapter else heir.kind
            decision = _decision(ref, heir.trains, heir.rule)
            verdicts[index] = decision._replace(kind=kind, conditional=heir.conditional)


def _predecessor(path: str, gone: Sequence[Decision]) -> Decision | None:
    """The decision that `path` takes over: that of the same last name, or the one that all of `gone` share."""
    same = [entry for entry in gone if entry.path.rpartition(".")[2] == path.rpartition(".")[2]]
    if same:
        return same[0]
    return gone[0] if len({(entry.trains, entry.rule) for entry in gone}) == 1 else None


def _modules_by_position(plan: TrainabilityPlan, selectors: Sequence[Selector]) -> Mapping[str, Decision]:
    """Module -> a decision of its subtree, where all of them come from one of these selectors."""
    texts = {rule_of(selector, trains=trains).text for selector in selectors for trains in (True, False)}
    found: dict[str, Decision | None] = {}
    for decision in plan.decisions.values():
        counts = (
            decision.rule.is_explicit
            and not decision.rule.single
            and decision.rule.text.partition(" from ")[0] in texts
        )
        module = decision.path
        while module:
            module = _parent(module)
            held = found.setdefault(module, decision if counts else None)
            if held is not None and (not counts or held.rule != decision.rule):
                found[module] = None
    return {module: held for module, held in found.items() if held is not None}


def _counts_positions(selector: Selector) -> bool:
    parts = [selector, *filter(None, (selector.within,)), *selector.excepts]
    return any(part.kind.key == "layers" or (part is not selector and _counts_positions(part)) for part in parts)


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _decision(ref: ParamRef, trains: bool, rule: Rule) -> Decision:
    kind = "adapter" if ref.is_adapter else "base"
    return Decision(ref.path, trains, rule, "", ref.shape, ref.dtype_name, kind)
