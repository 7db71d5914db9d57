"""Resolves rules against one tree: for every tensor, does it train and which rule decided it.

Pure: reads the tree, touches no parameter, works on the meta device. DESIGN section 3 gives the order of the rules.
"""

from __future__ import annotations

from collections.abc import Mapping

from frostline.errors import ConfigError, Problem, SelectorError
from frostline.trainability.adapter_targets import AdapterTargets
from frostline.trainability.conditional import expert_notes, find_conditional
from frostline.trainability.decision import Decision, Rule
from frostline.trainability.draft import baseline, decide_all, hold_required, lay_over, merge_tied, rows_of_new_tensors
from frostline.trainability.judging import frozen_new, idle_thaw_notes, nothing_trains, plan_notes, untrainable
from frostline.trainability.legacy import legacy_notes
from frostline.trainability.phases.phase import Phase, phase_problems
from frostline.trainability.plan import TrainabilityPlan
from frostline.trainability.required import find_required, required_notes
from frostline.trainability.rows import frozen_modes, module_rows
from frostline.trainability.rules import FreezeRules
from frostline.trainability.selected import select_all
from frostline.tree import ModuleTree


def resolve_plan(
    tree: ModuleTree,
    rules: FreezeRules,
    *,
    adapters: AdapterTargets | None = None,
    new: frozenset[str] = frozenset(),
    built_flags: Mapping[str, bool] | None = None,
) -> TrainabilityPlan:
    """The plan of `rules` for `tree`.

    Args:
        tree: the model; bare, or with its adapters injected.
        adapters: what a PEFT method adds; None means full fine-tuning.
        new: paths that the base files do not hold.
        built_flags: `requires_grad` as the model came, by path, where the tree's flags have been changed since.

    Raises:
        SelectorError: a selector selects nothing, or rules disagree about the names of one tensor.
        ConfigError: nothing trains, a new parameter is frozen, or a parameter that cannot train is thawed.
    """
    tree = tree.without_rows()  # they are decided anew, as the rest is
    if adapters is not None and not tree.adapter_params:
        index_of = tree.module_index
        tree = tree.with_planned_params({index_of[path]: params for path, params in adapters.planned.items()})
    blocks = select_all(rules, tree)
    freezing, thawing = (
        [pair for _, pairs, _ in blocks for pair in pairs],
        [pair for *_, pairs in blocks for pair in pairs],
    )
    required = find_required(tree)
    conditional = find_conditional(tree, thawing, adapters.conditional if adapters is not None else frozenset())
    draft = baseline(tree, adapters, new, built_flags)
    built = bytes(draft.trains)
    stages: list[tuple[Decision, ...]] = []
    disagreements: list[Problem] = []
    held: dict[int, Rule] = {}
    for when, frozen, thawed in blocks:
        before = list(draft.rule)
        disagreements += lay_over(tree, draft, frozen, trains=False, when=when)
        disagreements += lay_over(tree, draft, thawed, trains=True, when=when)
        disagreements += merge_tied(tree, draft, before)
        held |= hold_required(draft, required)
        stages.append(tuple(decide_all(tree, draft, new, built_flags, conditional)))
    disagreements += rows_of_new_tensors(tree, freezing + thawing, new)
    if disagreements and len({len(stage) for stage in stages}) > 1:
        raise SelectorError.from_problems(disagreements)
    decisions = stages[0]
    phases: list[Phase] = []
    overlaid = list(rules.freeze)
    for phase, before, after in zip(rules.phases, stages, stages[1:], strict=False):
        overlaid += phase.freeze
        phases.append(Phase.from_decisions(phase, before, after, frozen_modes(tree, overlaid)))
    problems = [*untrainable(stages), *frozen_new(stages, rules)]
    if disagreements:
        raise SelectorError.from_problems([*disagreements, *problems])
    if not problems and not any(decision.trains for decision in decisions):
        problems.append(nothing_trains(decisions, rules))
    if not problems:
        problems += phase_problems(phases)
    if problems:
        raise ConfigError.from_problems(problems)
    notes = [
        *legacy_notes(rules.legacy, freezing, tree),
        *plan_notes(stages, rules, freezing + thawing),
        *(idle_thaw_notes(built, *blocks[0][1:], required, rules) if adapters is None else ()),
        *required_notes(held, required, tree),
        *expert_notes(decisions, tree, conditional),
    ]
    return TrainabilityPlan(
        decisions=decisions,
        modules=module_rows(tree, rules.freeze),
        rules=rules,
        adapters=adapters,
        notes=(*notes, *(adapters.notes if adapters is not None else ())),
        phases=tuple(phases),
    )
