"""The decisions under construction: a baseline, and entry by entry what is laid over it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from frostline.errors import Problem
from frostline.selectors import Selector
from frostline.trainability.adapter_targets import AdapterTargets
from frostline.trainability.conditional import Conditional
from frostline.trainability.decision import (
    BUILT_FROZEN,
    BUILT_TRAINABLE,
    NEW_TRAINS,
    PEFT_FREEZES,
    Decision,
    Rule,
)
from frostline.trainability.required import Required
from frostline.trainability.rules import rule_of
from frostline.trainability.selected import Selected
from frostline.trainability.trained_rows import (
    Rows,
    overlay,
    rows_in_phase,
    rows_of_new,
    rows_path,
    show_rows,
    without_effect,
)
from frostline.tree import ModuleTree, ParamRef, update_dtype

THAWED_ALTHOUGH_FROZEN = "the model built it frozen"


@dataclass
class Draft:
    """The decisions under construction, by index of the parameter's name."""

    trains: list[bool] = field(default_factory=list[bool])
    rule: list[Rule] = field(default_factory=list[Rule])
    turn: list[int] = field(default_factory=list[int])  # number of the entry that gave the rule; 0 for the baseline
    num_entries: int = 0
    rows: dict[int, Rows] = field(default_factory=dict[int, Rows])  # those that train, where not all or none do
    split: dict[int, tuple[Rule, Rule]] = field(default_factory=dict[int, tuple[Rule, Rule]])  # of the rest; of these


def baseline(
    tree: ModuleTree, adapters: AdapterTargets | None, new: frozenset[str], built_flags: Mapping[str, bool] | None
) -> Draft:
    every_trains: list[bool] = []
    rules: list[Rule] = []
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
        every_trains.append(trains)
        rules.append(rule)
    return Draft(every_trains, rules, [0] * len(rules))


def _adapter_rule(tree: ModuleTree, owner: int, adapters: AdapterTargets | None) -> Rule:
    while tree.modules[owner].is_adapter:
        owner = tree.modules[owner].parent
    path = tree.modules[owner].path
    if adapters is not None and path in adapters.rules:
        return adapters.rules[path]
    return Rule("adapter", "adapters train")


def lay_over(
    tree: ModuleTree, draft: Draft, chosen: Iterable[Selected], *, trains: bool, when: str = ""
) -> list[Problem]:
    """Lay the entries of one list over `draft`; returns those that are at odds with rows of a table."""
    idle: list[Problem] = []
    by_rows: dict[int, Selector] = {}
    for selector, selection in chosen:
        rule = rule_of(selector, trains=trains, when=when)
        draft.num_entries += 1
        in_rows = selector.has_rows
        for index, is_selected in enumerate(selection.params):
            if not is_selected:
                continue
            ref = tree.params[index]
            if when and index in draft.rows:
                idle.append(rows_in_phase(ref.path, selector))
                continue
            if trains and index in by_rows and not in_rows:
                idle.append(without_effect(ref.path, by_rows[index], rule))
            if in_rows:
                before, held = draft.trains[index], draft.rows.pop(index, None)
                if trains and before and held is None and index not in by_rows:
                    idle.append(without_effect(ref.path, selector, draft.rule[index]))
                picked = selector.rows_of(ref.path, ref.shape)
                draft.trains[index], rows = overlay(before, held, picked, ref.shape[0], adds=trains)
                if rows is not None:
                    draft.rows[index] = rows
                of_rest, of_rows = draft.split.get(index, (draft.rule[index], draft.rule[index]))
                joined = _joined(of_rows if trains else of_rest, rule) if held is not None else rule
                draft.split[index] = (of_rest, joined) if trains else (joined, of_rows)
                by_rows[index] = selector
            else:
                draft.trains[index] = trains
                draft.rows.pop(index, None)
                draft.split.pop(index, None)
            draft.rule[index], draft.turn[index] = rule, draft.num_entries
    return idle


def _joined(before: Rule, rule: Rule) -> Rule:
    """`rule`, with the entries of the same list that named other rows of the table before it."""
    return replace(before, text=f"{before.text}; {rule}") if before.kind == rule.kind else rule


def rows_of_new_tensors(tree: ModuleTree, chosen: Iterable[Selected], new: frozenset[str]) -> Iterable[Problem]:
    """Rows of what the base files do not hold: there is no table that they could be laid over."""
    ties = {index: names for names in tree.names_of_tensor.values() for index in names}
    for selector, selection in chosen:
        if not selector.has_rows or not new:
            continue
        names = {index: ties.get(index, (index,)) for index in selection.matches}
        fresh = [tree.params[i].path for i, tied in names.items() if all(tree.params[n].path in new for n in tied)]
        if fresh:
            yield rows_of_new(fresh, selector)


def merge_tied(tree: ModuleTree, draft: Draft, before: Sequence[Rule]) -> list[Problem]:
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
        last = max(explicit, key=draft.turn.__getitem__, default=None)
        winner = last if last is not None else min(names, key=lambda index: draft.rule[index].kind == "new")
        for index in names:
            draft.trains[index], draft.rule[index] = draft.trains[winner], draft.rule[winner]
            if winner in draft.rows:
                draft.rows[index], draft.split[index] = draft.rows[winner], draft.split[winner]
            else:
                draft.rows.pop(index, None)
    return problems


def hold_required(draft: Draft, required: Required) -> dict[int, Rule]:
    """Freeze what the framework requires. Returns what would have trained, with the rule that said so."""
    held = {index: draft.rule[index] for index in required.params if draft.trains[index]}
    for index, row in required.params.items():
        draft.trains[index], draft.rule[index] = False, row.rule
        draft.rows.pop(index, None)
    return held


def _at_odds(verdicts: Iterable[tuple[bool, Rows | None]]) -> str:
    return "both frozen and trained" if len({trains for trains, _ in verdicts}) > 1 else "trained in different rows"


def decide_all(
    tree: ModuleTree,
    draft: Draft,
    new: frozenset[str],
    built_flags: Mapping[str, bool] | None,
    conditional: Conditional,
) -> Iterable[Decision]:
    """The decision for each tensor, once, in definition order; trained rows right behind their table."""
    aliases = {first: names[1:] for first, names in tree.names_of_tensor.items()}
    repeated = {index for names in aliases.values() for index in names}
    may_wait = conditional.mask
    for index, (ref, rule, trains) in enumerate(zip(tree.params, draft.rule, draft.trains, strict=True)):
        path, others, other = ref.path, (), ()
        if aliases:
            if index in repeated:
                continue
            others = aliases.get(index, ())
            other = tuple(tree.params[alias].path for alias in others)
        kind = "adapter" if ref.is_adapter else "base"
        if path in new and all(name in new for name in other):
            kind = "new"
        note = ""
        if trains and rule.kind == "unfreeze":
            built = built_flags.get(path, ref.requires_grad) if built_flags else ref.requires_grad
            note = "" if built else THAWED_ALTHOUGH_FROZEN
        # Under each of its names a tensor may be reached, so all have to be conditional.
        waits = may_wait[index] != 0 and (not others or all(may_wait[alias] for alias in others))
        whole = Decision(path, trains, rule, note, ref.shape, ref.dtype_name, kind, other, waits)
        if index not in draft.rows:
            yield whole
            continue
        of_rest, of_rows = draft.split[index]
        beside = _rows_beside(whole, ref, draft.rows[index])._replace(rule=of_rows)
        note = f"rows {show_rows(draft.rows[index])} train, as {beside.path}"
        yield whole._replace(trains=False, rule=of_rest, note=note)
        yield beside


def _rows_beside(whole: Decision, ref: ParamRef, rows: Rows) -> Decision:
    """The decision for the trained rows of a parameter: a tensor of its own, of the same names."""
    shape = (len(rows), *ref.shape[1:])
    names = [rows_path(name) for name in (whole.path, *whole.aliases)]
    dtype = update_dtype(ref.dtype) if ref.dtype.is_floating_point else ref.dtype
    return whole._replace(
        path=names[0],
        aliases=tuple(names[1:]),
        kind="rows",
        shape=shape,
        dtype=str(dtype).removeprefix("torch."),
        rows=rows,
        conditional=True,  # a batch may hold none of them
    )
