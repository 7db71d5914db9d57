"""What the page embeds: the folded tree, each distinct part, parameter and rule once.

    entries  [name, shape, dtype, kind, trains, conditional, rule, note, rows, ties, is another name, phases]
    parts    [class name, [entry, ...], [[[name, ...], part], ...]]

Numbers of entries, parts and rules are positions in their lists. Plain data: knows nothing of HTML.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from frostline.trainability.decision import Rule
from frostline.trainability.screen.folding import Entry, Part, fold
from frostline.trainability.screen.phase_lines import describe_start, phase_lines
from frostline.trainability.screen.report import summary_lines

if TYPE_CHECKING:
    from frostline.trainability.plan import TrainabilityPlan
    from frostline.trainability.screen.forecast import Forecast

_MAX_PHASES = 3  # in the headline; all of them are lines below


def page_data(
    plan: TrainabilityPlan, facts: Mapping[str, str], *, title: str, memory: Forecast, devices: Forecast | None
) -> dict[str, Any]:
    """Everything that `page.js` reads."""
    tables = _Tables()
    root = tables.part(fold(plan, by_phase=True))
    forecasts = [{"label": "one device", **memory.to_json()}]
    if devices is not None:
        forecasts.append({"label": f"each of {devices.num_devices} devices", **devices.to_json()})
    notes, lines = summary_lines(plan, facts, memory=memory, devices=devices)
    return {
        "title": title,
        "digest": plan.digest,
        "method": plan.adapters.label if plan.adapters else "",
        "numTrainable": plan.num_trainable,
        "numTotal": plan.num_total,
        "when": _when(plan),
        "phases": [describe_start(phase) for phase in plan.phases],
        "optimizer": facts.get("optimizer", "AdamW"),
        "facts": [
            *([key, text] for key, text in lines.items() if key not in ("trains", "memory", "device")),
            *(["phase", line] for line in phase_lines(plan)),
        ],
        "notes": notes,
        "forecasts": forecasts,
        "itemsizes": {entry[2]: getattr(torch, entry[2]).itemsize for entry in tables.entries},
        "rules": tables.rules,
        "entries": tables.entries,
        "parts": tables.parts,
        "root": root,
    }


def _when(plan: TrainabilityPlan) -> str:
    """What the count of trained parameters holds for, and the counts of the phases after that; empty without phases."""
    if not plan.phases:
        return ""
    later = range(plan.phase + 1, len(plan.phases) + 1)
    counts = [f"{plan.in_phase(index).num_trainable:,} in phase {index}" for index in later]
    rest = [f"{len(counts) - _MAX_PHASES} more phases"] if len(counts) > _MAX_PHASES else []
    return ", ".join([f"in phase {plan.phase}" if plan.phase else "at the start", *counts[:_MAX_PHASES], *rest])


class _Tables:
    def __init__(self) -> None:
        self.rules: list[list[str]] = []
        self.entries: list[list[Any]] = []
        self.parts: list[list[Any]] = []
        self._numbers: dict[object, int] = {}

    def part(self, part: Part) -> int:
        """Position of `part` in `parts`; puts it there, behind all that it is made of."""
        known = self._numbers.get(part)
        if known is not None:
            return known
        groups = [[list(group.names), self.part(group.part)] for group in part.groups]
        self.parts.append([part.type_name, [self._entry(entry) for entry in part.entries], groups])
        self._numbers[part] = len(self.parts) - 1
        return self._numbers[part]

    def _entry(self, entry: Entry) -> int:
        if entry not in self._numbers:
            decision = entry.decision
            rows = decision.rows
            row = [
                entry.name,
                list(decision.shape),
                decision.dtype,
                decision.kind,
                int(decision.trains),
                int(decision.conditional),
                self._rule(decision.rule),
                decision.note,
                [len(rows), min(rows), max(rows)] if rows else None,
                [list(tie) for tie in entry.ties],
                int(bool(entry.same_as)),
                list(entry.phases),
            ]
            self._numbers[entry] = len(self.entries)
            self.entries.append(row)
        return self._numbers[entry]

    def _rule(self, rule: Rule) -> int:
        place = "" if rule.origin is None else str(rule.origin)
        key = (rule.text, place)
        if key not in self._numbers:
            self._numbers[key] = len(self.rules)
            self.rules.append([rule.text, place])
        return self._numbers[key]
