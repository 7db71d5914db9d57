"""The rows of a plan's table: one for each part that a single rule can tell, equal blocks folded.

Makes rows, draws nothing: `report.py` lays them out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from frostline.trainability.screen.folding import Group, Part, Sums, fold

if TYPE_CHECKING:
    from frostline.trainability.plan import TrainabilityPlan


@dataclass(frozen=True)
class TableRow:
    """One line of the table. Counts are numbers of elements; `trains` 0 prints as `-`."""

    module: str
    params: int | None
    trains: int
    decided_by: str
    indent: int = 0
    is_new: bool = False


def table_rows(plan: TrainabilityPlan) -> list[TableRow]:
    """The rows of the table, top down."""
    table = _Table(plan.adapters.label if plan.adapters else "adapter")
    table.emit(fold(plan), "", _Place("(root)"))
    return table.rows


@dataclass(frozen=True)
class _Place:
    """Where rows go: how many equal blocks they stand for, how deep, and what the part at path "" is called."""

    root_label: str
    times: int = 1
    indent: int = 0

    def inside(self, count: int) -> _Place:
        return _Place("", self.times * count, self.indent + 1)


class _Table:
    def __init__(self, adapter_label: str) -> None:
        self.adapter_label = adapter_label
        self.rows: list[TableRow] = []

    def emit(self, part: Part, path: str, place: _Place) -> None:
        """Rows for `part` at `path`: one row if that tells it, else those of what it is made of."""
        sums = part.sums
        if sums.is_empty:
            return
        # At a numbered block the table stops to descend for the sake of adapters.
        is_block = path.rpartition(".")[2].isdecimal()
        if path and sums.is_uniform and (not sums.adapters or is_block or not part.groups):
            self._row(path, sums, place)
            self._adapters(part, path, place)
            return
        self._own(part, path, place)
        for group in part.groups:
            name = f"{path}.{group.label}" if path else group.label
            if len(group.names) == 1:
                self.emit(group.part, name, place)
            elif not group.part.sums.is_empty:
                self._folded(group, f"{name} ({len(group.names)} equal)", name, place)

    def _folded(self, group: Group, label: str, path: str, place: _Place) -> None:
        """Equal blocks: one row with the counts of all; where that cannot tell them, the parts of one below it."""
        sums, count = group.part.sums, len(group.names)
        if sums.is_uniform:
            self._row(label, sums, place, count)
            self._adapters(group.part, path, place, count)
            return
        all_of_them = place.times * count
        self.rows.append(
            TableRow(
                label, sums.base * all_of_them, sums.base_trained * all_of_them, "several rules, below", place.indent
            )
        )
        self.emit(group.part, "", place.inside(count))

    def _own(self, part: Part, path: str, place: _Place) -> None:
        """What the module holds itself, beside its children."""
        own = [entry for entry in part.entries if not entry.is_adapter and not entry.same_as]
        sums = Sums()
        for entry in own:
            sums.add_base(entry.decision)
        name = path or place.root_label
        if own and sums.is_uniform:
            label = f"{name} (own parameters)".strip() if part.groups else name
            self._row(label, sums, place)
        elif own:
            for entry in own:
                decision, single = entry.decision, Sums()
                single.add_base(decision)
                self._row(f"{path}.{entry.name}" if path else entry.name, single, place)
        adapters = Part(part.type_name, tuple(entry for entry in part.entries if entry.is_adapter), ())
        self._adapters(adapters, path, place)

    def _row(self, label: str, sums: Sums, place: _Place, count: int = 1) -> None:
        times = place.times * count
        if not sums.rules:
            self.rows.append(TableRow(label, None, 0, "", place.indent))
            return
        row = TableRow(
            label,
            sums.base * times,
            sums.base_trained * times,
            _rules(sums, times),
            place.indent,
            sums.kinds == {"new"},
        )
        self.rows.append(row)

    def _adapters(self, part: Part, path: str, place: _Place, count: int = 1) -> None:
        """Adapters below the row of their blocks, summed over equal blocks and over equal children of a block."""
        times = place.times * count
        for (relative, rows, rule), (total, trained) in part.sums.adapters.items():
            name = relative or path.rpartition(".")[2] or place.root_label
            params = total * times if total != trained else None
            label = f"{name}  {rows or f'+{self.adapter_label}'}"
            self.rows.append(TableRow(label, params, trained * times, rule, place.indent + 1))


def _rules(sums: Sums, times: int) -> str:
    """The rules of a row, those of trained parameters first, each once; single ones with their count."""
    ordered = sorted(sums.rules.items(), key=lambda item: not item[1][1])
    if len(ordered) == 1:
        return str(ordered[0][0])
    return "; ".join(f"{rule} ({count * times})" if rule.single else str(rule) for rule, (count, _) in ordered)
