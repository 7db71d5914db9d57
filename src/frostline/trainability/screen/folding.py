"""A plan as a tree in which equal parts are one: the shape behind the table, the page and nothing else.

Blocks that decide the same things of the same shapes are one `Part` with many names, so that 60 layers of 256 experts
are a handful of objects. Reads the plan only; linear in its size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from frostline.trainability.decision import Decision, Rule
from frostline.trainability.trained_rows import show_rows

if TYPE_CHECKING:
    from frostline.trainability.plan import TrainabilityPlan

_MAX_ROWS_TEXT = 24


@dataclass(frozen=True, slots=True)
class Entry:
    """One parameter below its module.

    Attributes:
        name: path from the module that holds it; an adapter's belong to the module that it adapts.
        decision: what the plan says; of equal blocks that of the first.
        same_as: path of the tensor of which this is only another name, and which counts it; empty for most.
        ties: how to get from here to the other names of the tensor: (components to go up, path from there).
        phases: the phases in which it trains (0 for the start), where these are some and not all.
    """

    name: str
    decision: Decision
    same_as: str = ""
    ties: tuple[tuple[int, str], ...] = ()
    phases: tuple[int, ...] = ()

    @property
    def is_adapter(self) -> bool:
        """Whether it is added beside the base: by an adapter, or to train single rows of a table."""
        return self.decision.kind in ("adapter", "rows")


@dataclass(frozen=True, slots=True)
class Group:
    """Children of one module that are equal to the last decision; most groups have one name."""

    names: tuple[str, ...]
    part: Part

    @property
    def label(self) -> str:
        """`0-5`, or the one name."""
        return span(self.names)


@dataclass(eq=False)
class Part:
    """One distinct subtree.

    Attributes:
        type_name: class of the module.
        entries: its own parameters, those of its adapter behind them.
        groups: its children.
    """

    type_name: str
    entries: tuple[Entry, ...]
    groups: tuple[Group, ...]

    @cached_property
    def sums(self) -> Sums:
        """Counts of the whole subtree."""
        return _sums(self)


@dataclass
class Sums:
    """Counts over a subtree, each tensor once.

    Attributes:
        base, base_trained: elements outside adapters.
        rules: rule -> (parameters, whether they train), outside adapters.
        kinds: of the parameters outside adapters.
        adapters: (path of the adapted module from here, with `*` for numbers; which rows, empty for adapters; rule) ->
            elements, of which train.
    """

    base: int = 0
    base_trained: int = 0
    rules: dict[Rule, tuple[int, bool]] = field(default_factory=dict[Rule, tuple[int, bool]])
    kinds: set[str] = field(default_factory=set[str])
    adapters: dict[tuple[str, str, str], tuple[int, int]] = field(
        default_factory=dict[tuple[str, str, str], tuple[int, int]]
    )

    def add_base(self, decision: Decision) -> None:
        """Count one parameter outside adapters."""
        self.base += decision.num_elements
        self.base_trained += decision.num_elements * decision.trains
        self.add_rule(decision.rule, 1, decision.trains)
        self.kinds.add(decision.kind)

    def add_rule(self, rule: Rule, count: int, trains: bool) -> None:
        """Count `count` parameters under `rule`."""
        known = self.rules.get(rule)
        self.rules[rule] = (count + (known[0] if known else 0), trains)

    def add_adapter(self, path: str, rows: str, rule: str, elements: int, trained: int) -> None:
        """Count elements of an adapter, or of trained `rows`, at `path`."""
        total, so_far = self.adapters.get((path, rows, rule), (0, 0))
        self.adapters[path, rows, rule] = (total + elements, so_far + trained)

    @property
    def is_uniform(self) -> bool:
        """Whether one row can tell it: one rule, or a baseline plus rules that pick single parameters."""
        return sum(not rule.single for rule in self.rules) <= 1 and len(self.kinds) <= 1

    @property
    def is_empty(self) -> bool:
        """Whether nothing lies here but other names of tensors elsewhere."""
        return not self.rules and not self.adapters


def fold(plan: TrainabilityPlan, *, by_phase: bool = False) -> Part:
    """The root of `plan`'s tree. Equal subtrees are the same object; with `by_phase` they are equal in every phase."""
    trained = [set(plan.in_phase(index).trainable) for index in range(len(plan.phases) + 1)] if by_phase else []
    rows = [row for row in plan.modules if not row.is_adapter]
    position = {row.path: index for index, row in enumerate(rows)}
    entries: list[list[Entry]] = [[] for _ in rows]
    interned = _Entries()
    for decision in plan.decisions.values():
        phases = tuple([index for index, paths in enumerate(trained) if decision.path in paths])
        phases = phases if len(phases) < len(trained) else ()
        owner, name = _owner(decision.path, position)
        entries[owner].append(interned.get(name, decision, phases=phases))
        for alias in decision.aliases:
            owner, name = _owner(alias, position)
            entries[owner].append(interned.get(name, decision, alias, phases))
    children: list[list[tuple[str, Part]]] = [[] for _ in rows]
    known: dict[object, Part] = {}
    part = Part("", (), ())
    for index in range(len(rows) - 1, -1, -1):  # preorder backwards: children come before their parent
        row, own = rows[index], entries[index]
        groups = _grouped(children[index])
        key = (
            row.type_name,
            tuple([id(entry) for entry in own]),
            tuple([(group.names, id(group.part)) for group in groups]),
        )
        found = known.get(key)
        part = known[key] = Part(row.type_name, tuple(own), groups) if found is None else found
        children[index] = []
        if row.path:
            above, name = _owner(row.path, position)
            children[above].append((name, part))
    return part


def span(names: Sequence[str]) -> str:
    """`0-5` for consecutive numbers, `0-10 step 2`, `0,3-5`, or the one name."""
    if len(names) == 1:
        return names[0]
    numbers = [int(name) for name in names]
    steps = {after - before for before, after in pairwise(numbers)}
    if len(steps) == 1 and (step := next(iter(steps))) > 0 and (step == 1 or len(names) > 2):
        return f"{names[0]}-{names[-1]}" + (f" step {step}" if step > 1 else "")
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ",".join(words if len(words) <= 6 else [*words[:5], f"...,{words[-1]}"])


def _owner(path: str, position: Mapping[str, int]) -> tuple[int, str]:
    """Index of the nearest known module above `path`, and the rest of the path."""
    above, _, name = path.rpartition(".")
    owner = position.get(above)
    while owner is None:  # the path of an adapter, whose modules are not among the known ones
        above = above.rpartition(".")[0]
        owner, name = position.get(above), ""
    return owner, name or (path[len(above) + 1 :] if above else path)


def _ties(name: str, decision: Decision) -> tuple[tuple[int, str], ...]:
    """Relative, so that blocks that are tied in the same way are equal."""
    here = name.split(".")
    found: list[tuple[int, str]] = []
    for other in (decision.path, *decision.aliases):
        there = other.split(".")
        common = 0
        while common < min(len(here), len(there)) and here[common] == there[common]:
            common += 1
        if other != name:
            found.append((len(here) - common, ".".join(there[common:])))
    return tuple(found)


class _Entries:
    """Makes entries, equal ones once: what two parameters differ in but the path of their module."""

    def __init__(self) -> None:
        self._entries: dict[object, Entry] = {}
        self._rule_numbers: dict[int, int] = {}
        self._rules: dict[Rule, int] = {}

    def get(self, name: str, decision: Decision, alias: str = "", phases: tuple[int, ...] = ()) -> Entry:
        """The entry of `decision` at its own path, or at `alias`, called `name` below its module."""
        rule = self._rule_numbers.get(id(decision.rule))
        if rule is None:  # hashing a rule is slow, and most parameters share a few
            rule = self._rule_numbers[id(decision.rule)] = self._rules.setdefault(decision.rule, len(self._rules))
        ties = _ties(alias or decision.path, decision) if decision.aliases else ()
        key = (
            *(name, decision.shape, decision.dtype, decision.trains, rule, decision.kind, decision.note),
            *(decision.conditional, decision.rows, bool(alias), ties, phases),
        )
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = Entry(name, decision, decision.path if alias else "", ties, phases)
        return entry


def _grouped(children: list[tuple[str, Part]]) -> tuple[Group, ...]:
    """Children in definition order (they come reversed); numbered ones that are the same part stand at the first."""
    names: dict[object, list[str]] = {}
    parts: dict[object, Part] = {}
    for name, part in reversed(children):
        key = id(part) if name.isdecimal() else name
        names.setdefault(key, []).append(name)
        parts[key] = part
    return tuple(Group(tuple(names[key]), parts[key]) for key in names)


def _sums(part: Part) -> Sums:
    sums = Sums()
    for entry in part.entries:
        decision = entry.decision
        if entry.same_as:
            continue
        if entry.is_adapter:
            trained = decision.num_elements * decision.trains
            sums.add_adapter("", _rows_label(part, entry), str(decision.rule), decision.num_elements, trained)
        else:
            sums.add_base(decision)
    for group in part.groups:
        inner, times = group.part.sums, len(group.names)
        sums.base += inner.base * times
        sums.base_trained += inner.base_trained * times
        sums.kinds |= inner.kinds
        for rule, (count, trains) in inner.rules.items():
            sums.add_rule(rule, count * times, trains)
        name = "*" if group.names[0].isdecimal() else group.names[0]
        for (path, rows, rule), (elements, trained) in inner.adapters.items():
            sums.add_adapter(f"{name}.{path}" if path else name, rows, rule, elements * times, trained * times)
    return sums


def _rows_label(part: Part, entry: Entry) -> str:
    """`rows 32000:32005 (5 of 32,005)`; empty for what is no rows of a table."""
    rows = entry.decision.rows
    if rows is None:
        return ""
    table = next((other.decision.shape[0] for other in part.entries if other.name == "weight"), len(rows))
    text = show_rows(rows)
    shown = f"rows {text} (" if len(text) <= _MAX_ROWS_TEXT else "rows ("
    return f"{shown}{len(rows):,} of {table:,})"
