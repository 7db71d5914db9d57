"""Resolves rules against one tree: for every tensor, does it train and which rule decided it.

Pure: reads the tree, touches no parameter, works on the meta device. DESIGN section 3 gives the order of the rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from frostline.config.wording import shorten_names
from frostline.errors import ConfigError, Problem, SelectorError
from frostline.selectors import Selection, Selector, require_matches
from frostline.trainability.conditional import Conditional, expert_notes, find_conditional
from frostline.trainability.decision import (
    BUILT_FROZEN,
    BUILT_TRAINABLE,
    NEW_TRAINS,
    PEFT_FREEZES,
    Decision,
    Rule,
    decide,
)
from frostline.trainability.legacy import LEGACY_KEYS, is_legacy, legacy_notes, legacy_problems
from frostline.trainability.phases.phase import Phase, phase_problems
from frostline.trainability.phases.rules import PhaseRules
from frostline.trainability.plan import TrainabilityPlan
from frostline.trainability.required import Required, find_required, required_notes
from frostline.trainability.rows import frozen_modes, module_rows
from frostline.trainability.rules import FreezeRules, rule_of
from frostline.trainability.trained_rows import (
    Rows,
    named_in_rows,
    overlay,
    rows_in_phase,
    rows_of_new,
    rows_path,
    show_rows,
    without_effect,
)
from frostline.tree import ModuleTree, ParamRef, PlannedParam, update_dtype

_MAX_NAMES = 5
_BUILT_FROZEN = "the model built it frozen"
Selected = tuple[Selector, Selection]


@dataclass(frozen=True)
class AdapterTargets:
    """What a PEFT method will add, as data: no method object, no module.

    Attributes:
        label: shown in the plan, such as `LoRA r8`.
        rules: path of each adapted module -> the rule that chose it.
        planned: path of each adapted module -> the parameters that injection creates there.
        notes: remarks on what was skipped and why.
        conditional: paths of adapted modules whose selector says `conditional: true`.
    """

    label: str
    rules: Mapping[str, Rule]
    planned: Mapping[str, Sequence[PlannedParam]]
    notes: tuple[str, ...] = ()
    conditional: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Reach:
    """How far the freeze config reaches in the base tree: what adapter injection has to respect.

    Attributes:
        left_alone: mask over modules: inside `freeze_modules` and not thawed, or with new parameters that it freezes.
        trained_in_full: mask over parameters: thawed by a selector in any phase, or new and not frozen by one.
        in_rows: mask over parameters: rows of it are frozen or thawed apart from the others.
        required: index of each module that the framework keeps frozen -> why.
    """

    left_alone: bytearray
    trained_in_full: bytearray
    in_rows: bytearray
    required: Mapping[int, str] = field(default_factory=dict[int, str])


@dataclass
class _Draft:
    """The decisions under construction, by index of the parameter's name."""

    trains: list[bool] = field(default_factory=list[bool])
    rule: list[Rule] = field(default_factory=list[Rule])
    rows: dict[int, Rows] = field(default_factory=dict[int, Rows])  # those that train, where not all or none do
    split: dict[int, tuple[Rule, Rule]] = field(default_factory=dict[int, tuple[Rule, Rule]])  # of the rest; of these


def reach_of(tree: ModuleTree, rules: FreezeRules, new: frozenset[str] = frozenset()) -> Reach:
    """Where `rules` reach before adapters are there.

    Raises:
        SelectorError: a module selector selects nothing.
    """
    _require_selections([selector for selector in _all_selectors(rules) if not selector.selects_params], tree)
    in_rows = bytearray(len(tree.params))
    for index, _ in named_in_rows(tree, (*rules.freeze, *rules.unfreeze)):
        in_rows[index] = 1
    left_alone = bytearray(len(tree.modules))
    frozen = bytearray(len(tree.params))
    for selector in rules.freeze:
        if selector.has_rows:
            continue
        selection = selector.select(tree)
        _set(left_alone, selection.modules)
        _set(frozen, selection.params)
    trained = bytearray(len(tree.params))
    for selector in rules.unfreeze:
        if selector.has_rows:
            continue
        selection = selector.select(tree)
        _set(trained, selection.params)
        for index, is_set in enumerate(selection.modules):
            if is_set:
                left_alone[index] = 0
    for selector in (selector for phase in rules.phases for selector in phase.unfreeze):
        _set(trained, selector.select(tree).params)  # adapters are injected once, so for what any phase trains
    for index, ref in enumerate(tree.params):
        if ref.path in new and frozen[index] and not trained[index]:
            left_alone[ref.owner] = 1
        elif ref.path in new:
            trained[index] = 1
    required = find_required(tree)
    for index in required.params:
        trained[index] = 0
    return Reach(left_alone, trained, in_rows, {index: row.reason for index, row in required.modules.items()})


def _require_selections(selectors: Sequence[Selector], tree: ModuleTree) -> list[Selection]:
    """`require_matches`, with the one legacy key that must match something, too."""
    problems = legacy_problems(selectors, tree)
    try:
        selections = require_matches(selectors, tree)
    except SelectorError as error:
        raise SelectorError.from_problems([*problems, *error.problems]) from None
    if problems:
        raise SelectorError.from_problems(problems)
    return selections


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
    blocks = _select(rules, tree)
    freezing, thawing = (
        [pair for _, pairs, _ in blocks for pair in pairs],
        [pair for *_, pairs in blocks for pair in pairs],
    )
    required = find_required(tree)
    conditional = find_conditional(tree, thawing, adapters.conditional if adapters is not None else frozenset())
    draft = _baseline(tree, adapters, new, built_flags)
    stages: list[tuple[Decision, ...]] = []
    disagreements: list[Problem] = []
    held: dict[int, Rule] = {}
    for when, frozen, thawed in blocks:
        before = list(draft.rule)
        disagreements += _overlay(tree, draft, frozen, trains=False, when=when)
        disagreements += _overlay(tree, draft, thawed, trains=True, when=when)
        disagreements += _merge_tied(tree, draft, before)
        held |= _hold_required(draft, required)
        stages.append(tuple(_decisions(tree, draft, new, built_flags, conditional)))
    disagreements += _rows_of_new(tree, freezing + thawing, new)
    if disagreements and len({len(stage) for stage in stages}) > 1:
        raise SelectorError.from_problems(disagreements)
    decisions = stages[0]
    phases: list[Phase] = []
    overlaid = list(rules.freeze)
    for phase, before, after in zip(rules.phases, stages, stages[1:], strict=False):
        overlaid += phase.freeze
        phases.append(Phase.from_decisions(phase, before, after, frozen_modes(tree, overlaid)))
    problems = [*_untrainable(stages), *_frozen_new(stages, rules)]
    if disagreements:
        raise SelectorError.from_problems([*disagreements, *problems])
    if not problems and not any(decision.trains for decision in decisions):
        problems.append(_nothing_trains(decisions, rules))
    if not problems:
        problems += phase_problems(phases)
    if problems:
        raise ConfigError.from_problems(problems)
    notes = [
        *legacy_notes(rules.legacy, freezing, tree),
        *_notes(stages, rules, freezing + thawing),
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


def _all_selectors(rules: FreezeRules) -> list[Selector]:
    """Those of the block and of its phases, in the order in which they count."""
    return [selector for block in (rules, *rules.phases) for selector in (*block.freeze, *block.unfreeze)]


def _select(rules: FreezeRules, tree: ModuleTree) -> list[tuple[str, list[Selected], list[Selected]]]:
    """For the block and each of its phases: from when on, what it freezes, what it thaws."""
    selections = iter(_require_selections(_all_selectors(rules), tree))
    return [
        (
            f" from {block.at} on" if isinstance(block, PhaseRules) else "",
            [(selector, next(selections)) for selector in block.freeze],
            [(selector, next(selections)) for selector in block.unfreeze],
        )
        for block in (rules, *rules.phases)
    ]


def _baseline(
    tree: ModuleTree, adapters: AdapterTargets | None, new: frozenset[str], built_flags: Mapping[str, bool] | None
) -> _Draft:
    draft = _Draft()
    for ref in tree.params:
        if ref.is_adapter:
            trains, rule = True, _adapter_rule(tree, ref.owner, adapters)
        elif ref.path in new:
            trains, rule = True, NEW_TRAINS
        elif adapters is not None:
            trains, rule = False, PEFT_FREEZES
        else:
            trains = built_flags.get(ref.path, ref.requires_grad) if built_flags else ref.requires_grad
            rule = BUILT_TRAINABLE if trains else BUILT_FROZEN
        draft.trains.append(trains)
        draft.rule.append(rule)
    return draft


def _adapter_rule(tree: ModuleTree, owner: int, adapters: AdapterTargets | None) -> Rule:
    while tree.modules[owner].is_adapter:
        owner = tree.modules[owner].parent
    path = tree.modules[owner].path
    if adapters is not None and path in adapters.rules:
        return adapters.rules[path]
    return Rule("adapter", "adapters train")


def _overlay(
    tree: ModuleTree, draft: _Draft, chosen: Iterable[Selected], *, trains: bool, when: str = ""
) -> list[Problem]:
    """Lay the entries of one list over `draft`; returns those that are at odds with rows of a table."""
    idle: list[Problem] = []
    by_rows: dict[int, Selector] = {}
    for selector, selection in chosen:
        rule = rule_of(selector, trains=trains, when=when)
        for index, is_selected in enumerate(selection.params):
            if not is_selected:
                continue
            ref = tree.params[index]
            if when and index in draft.rows:
                idle.append(rows_in_phase(ref.path, selector))
                continue
            if trains and index in by_rows and not selector.has_rows:
                idle.append(without_effect(ref.path, by_rows[index], rule))
            if selector.has_rows:
                before, held = draft.trains[index], draft.rows.pop(index, None)
                if trains and before and held is None and index not in by_rows:
                    idle.append(without_effect(ref.path, selector, draft.rule[index]))
                picked = selector.rows_of(ref.path, ref.shape)
                draft.trains[index], rows = overlay(before, held, picked, ref.shape[0], adds=trains)
                if rows is not None:
                    draft.rows[index] = rows
                of_rest, of_rows = draft.split.get(index, (draft.rule[index], draft.rule[index]))
                draft.split[index] = (of_rest, rule) if trains else (rule, of_rows)
                by_rows[index] = selector
            else:
                draft.trains[index] = trains
                draft.rows.pop(index, None)
                draft.split.pop(index, None)
            draft.rule[index] = rule
    return idle


def _rows_of_new(
    tree: ModuleTree, chosen: Iterable[tuple[Selector, Selection]], new: frozenset[str]
) -> Iterable[Problem]:
    ties = {index: names for names in tree.names_of_tensor.values() for index in names}
    for selector, selection in chosen:
        if not selector.has_rows or not new:
            continue
        names = {index: ties.get(index, (index,)) for index in selection.matches}
        fresh = [tree.params[i].path for i, tied in names.items() if all(tree.params[n].path in new for n in tied)]
        if fresh:
            yield rows_of_new(fresh, selector)


def _merge_tied(tree: ModuleTree, draft: _Draft, before: Sequence[Rule]) -> list[Problem]:
    """Give all names of a tensor one decision: an explicit rule beats a baseline, two explicit ones must agree.

    Explicit is what the block at hand says: in a phase, a rule that was there `before` gives way like a baseline.
    """
    problems: list[Problem] = []
    for names in tree.names_of_tensor.values():
        explicit = [
            index for index in names if draft.rule[index].is_explicit and draft.rule[index] is not before[index]
        ]
        verdicts = {(draft.trains[index], draft.rows.get(index)) for index in explicit}
        if len(verdicts) > 1:
            listed = "\n".join(f"{tree.params[index].path}: {draft.rule[index]}" for index in explicit)
            others = ", ".join(tree.params[index].path for index in names)
            first = next(draft.rule[index].origin for index in explicit if draft.trains[index])
            problems.append(
                Problem(
                    f"one tensor is {_at_odds(verdicts)} under its names {others}",
                    str(first),
                    f"the rules that disagree:\n{listed}",
                    "name all of them in the same list, or untie the weights in the model's config",
                )
            )
            continue
        # A name that another one explains decides for the new one too: a tied tensor is in the base files.
        winner = explicit[-1] if explicit else min(names, key=lambda index: draft.rule[index].kind == "new")
        for index in names:
            draft.trains[index], draft.rule[index] = draft.trains[winner], draft.rule[winner]
            if winner in draft.rows:
                draft.rows[index], draft.split[index] = draft.rows[winner], draft.split[winner]
            else:
                draft.rows.pop(index, None)
    return problems


def _hold_required(draft: _Draft, required: Required) -> dict[int, Rule]:
    """Freeze what the framework requires. Returns what would have trained, with the rule that said so."""
    held = {index: draft.rule[index] for index in required.params if draft.trains[index]}
    for index, row in required.params.items():
        draft.trains[index], draft.rule[index] = False, row.rule
        draft.rows.pop(index, None)
    return held


def _at_odds(verdicts: Iterable[tuple[bool, Rows | None]]) -> str:
    return "both frozen and trained" if len({trains for trains, _ in verdicts}) > 1 else "trained in different rows"


def _decisions(
    tree: ModuleTree,
    draft: _Draft,
    new: frozenset[str],
    built_flags: Mapping[str, bool] | None,
    conditional: Conditional,
) -> Iterable[Decision]:
    aliases = {first: names[1:] for first, names in tree.names_of_tensor.items()}
    repeated = {index for names in aliases.values() for index in names}
    may_wait = conditional.mask
    for index, (ref, rule, trains) in enumerate(zip(tree.params, draft.rule, draft.trains, strict=True)):
        if index in repeated:
            continue
        others = aliases.get(index, ())
        other = tuple(tree.params[alias].path for alias in others) if others else ()
        kind = "adapter" if ref.is_adapter else "base"
        if ref.path in new and all(name in new for name in other):
            kind = "new"
        note = ""
        if trains and rule.kind == "unfreeze":
            built = built_flags.get(ref.path, ref.requires_grad) if built_flags else ref.requires_grad
            note = "" if built else _BUILT_FROZEN
        whole = decide(
            ref.path,
            trains,
            rule,
            note,
            ref.num_elements,
            ref.shape,
            ref.dtype_name,
            kind,
            other,
            # Under each of its names a tensor may be reached, so all have to be conditional.
            bool(may_wait[index]) and all(may_wait[alias] for alias in others),
        )
        if index not in draft.rows:
            yield whole
            continue
        of_rest, of_rows = draft.split[index]
        beside = replace(_rows_beside(whole, ref, draft.rows[index]), rule=of_rows)
        note = f"rows {show_rows(draft.rows[index])} train, as {beside.path}"
        yield replace(whole, trains=False, rule=of_rest, note=note)
        yield beside


def _rows_beside(whole: Decision, ref: ParamRef, rows: Rows) -> Decision:
    """The decision for the trained rows of a parameter: a tensor of its own, of the same names."""
    shape = (len(rows), *ref.shape[1:])
    names = [rows_path(name) for name in (whole.path, *whole.aliases)]
    dtype = update_dtype(ref.dtype) if ref.dtype.is_floating_point else ref.dtype
    return replace(
        whole,
        path=names[0],
        aliases=tuple(names[1:]),
        kind="rows",
        shape=shape,
        num_elements=math.prod(shape),
        dtype=str(dtype).removeprefix("torch."),
        rows=rows,
        conditional=True,  # a batch may hold none of them
    )


def _untrainable(stages: Sequence[Sequence[Decision]]) -> list[Problem]:
    trained = {decision.path: decision for stage in reversed(stages) for decision in stage if decision.trains}
    return [
        Problem(
            f"{decision.path} is to train, but its dtype is {decision.dtype}",
            str(decision.rule.origin or decision.rule.kind),
            "floating-point parameters train; integer and packed ones cannot",
            'exclude it with `except: [{param: "..."}]`, or load the model without quantization',
        )
        for decision in trained.values()
        if not decision.dtype.startswith(("float", "bfloat", "complex"))
    ]


def _never_trained(stages: Sequence[Sequence[Decision]]) -> list[Decision]:
    """Decisions of the block about tensors that train neither there nor in a phase."""
    trained = {decision.path for stage in stages for decision in stage if decision.trains}
    return [decision for decision in stages[0] if decision.path not in trained]


def _frozen_new(stages: Sequence[Sequence[Decision]], rules: FreezeRules) -> list[Problem]:
    if rules.allow_frozen_new:
        return []
    frozen = [entry for entry in _never_trained(stages) if _is_frozen_new(entry)]
    if not frozen:
        return []
    is_legacy_rule = frozen[0].rule.text.startswith(LEGACY_KEYS)
    names = ", ".join(decision.path for decision in frozen[:_MAX_NAMES])
    return [
        Problem(
            f"{names} {'is' if len(frozen) == 1 else 'are'} new (not in the base files), but frozen: random for ever",
            str(frozen[0].rule.origin),
            f"frozen by {frozen[0].rule}",
            "write freeze_modules with selectors that leave it out, in place of the legacy key"
            if is_legacy_rule
            else "take it out of freeze_modules, or set `allow_frozen_new: true` to keep it random and saved",
        )
    ]


def _is_frozen_new(decision: Decision) -> bool:
    # What the framework keeps frozen has no effect, so that it may stay as it was drawn.
    return decision.kind == "new" and not decision.trains and decision.rule.kind != "required"


def _nothing_trains(decisions: Sequence[Decision], rules: FreezeRules) -> Problem:
    by_rule: dict[str, int] = {}
    for decision in decisions:
        by_rule[str(decision.rule)] = by_rule.get(str(decision.rule), 0) + 1
    return Problem(
        f"nothing trains: all {len(decisions)} parameters are frozen",
        str(rules.origin),
        "\n".join(f"{count} by {rule}" for rule, count in by_rule.items()),
        "thaw a part with `unfreeze_modules`, or add adapters with `peft`",
    )


def _notes(
    stages: Sequence[Sequence[Decision]],
    rules: FreezeRules,
    chosen: Sequence[Selected],
) -> Iterable[str]:
    decisions = stages[0]
    thawed = list(dict.fromkeys(entry.path for stage in stages for entry in stage if entry.note == _BUILT_FROZEN))
    if thawed:
        yield f"thawed although the model built it frozen: {shorten_names(thawed, _MAX_NAMES)}"
    tied = [decision for decision in decisions if decision.aliases]
    for decision in tied:
        state = "trains" if decision.trains else "frozen"
        yield f"one tensor, {state}: {decision.path} = {' = '.join(decision.aliases)}"
    for selector, selection in chosen:
        if not selection.matches and not is_legacy(selector):
            yield f"optional selector {selector} ({selector.origin.short}) matches nothing here"
    new_frozen = [entry.path for entry in _never_trained(stages) if _is_frozen_new(entry)]
    if new_frozen:
        yield f"new but frozen (allow_frozen_new), kept in every checkpoint: {shorten_names(new_frozen, _MAX_NAMES)}"
    if rules.frozen_mode == "train":
        yield "frozen_mode train: dropout and normalization statistics of frozen modules follow the model's mode"
    for selector, _ in chosen:
        if selector.frozen_mode is not None and selector.frozen_mode != rules.frozen_mode:
            what = "stay still" if selector.frozen_mode == "eval" else "follow the model's mode"
            yield (
                f"frozen_mode {selector.frozen_mode} of {selector} ({selector.origin.short}): dropout and "
                f"normalization statistics there {what}"
            )


def _set(mask: bytearray, other: bytearray) -> None:
    for index, is_set in enumerate(other):
        if is_set:
            mask[index] = 1
