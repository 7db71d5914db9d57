"""Draws a plan as a table for a terminal: equal blocks folded, the deciding rule beside each row.

Reads the plan only; lines about data and steps are handed in as facts.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING

from frostline.trainability.screen.phase_lines import phase_lines
from frostline.trainability.screen.table import table_rows

if TYPE_CHECKING:
    from frostline.trainability.plan import TrainabilityPlan
    from frostline.trainability.screen.forecast import Forecast

_MAX_ROWS = 200
_MIN_RULE_WIDTH = 16


def render_plan(
    plan: TrainabilityPlan, facts: Mapping[str, str], *, width: int, memory: Forecast, devices: Forecast | None
) -> str:
    """Table, notes and summary lines as plain text; a rule that does not fit into `width` columns goes on below."""
    rows = table_rows(plan)
    labels = ["  " * row.indent + row.module + ("  NEW" if row.is_new else "") for row in rows]
    name_width = max([len("module"), *(len(label) for label in labels)]) + 2
    lines = [f"{'module':<{name_width}}{'params':>14}{'trains':>12}  decided by"]
    for row, label in list(zip(rows, labels, strict=True))[:_MAX_ROWS]:
        params = "" if row.params is None else f"{row.params:,}"
        trains = f"{row.trains:,}" if row.trains else "-"
        lines.extend(_wrapped(f"{label:<{name_width}}{params:>14}{trains:>12}  ", row.decided_by, width))
    if len(rows) > _MAX_ROWS:
        lines.append(f"... and {len(rows) - _MAX_ROWS} more rows (plan --json has all)")
    lines.append("")
    notes, summary = summary_lines(plan, facts, memory=memory, devices=devices)
    lines.extend(f"{key:<8} {text}" for key, text in summary.items())
    lines.extend(f"{'phase':<8} {line}" for line in phase_lines(plan))
    lines.extend(f"{'note':<8} {note}" for note in notes)
    lines.append(f"{'plan':<8} {plan.digest[:8]}")
    return "\n".join(lines)


def summary_lines(
    plan: TrainabilityPlan, facts: Mapping[str, str], *, memory: Forecast, devices: Forecast | None
) -> tuple[list[str], dict[str, str]]:
    """All notes, and the lines below the table by their labels."""
    share = 100 * plan.num_trainable / max(plan.num_total, 1)
    lines = {
        "trains": f"{plan.num_trainable:,} of {plan.num_total:,} ({share:.2f} %)",
        **memory_lines(memory, devices, facts.get("optimizer", "AdamW")),
    }
    notes: list[str] = []
    for key, text in facts.items():
        if key == "note" or key.startswith("note "):
            notes.append(text)
        elif key != "optimizer":
            lines[key] = text
    assumed = dict.fromkeys([*memory.notes, *(devices.notes if devices else ())])
    return [*notes, *plan.notes, *assumed], lines


def memory_lines(memory: Forecast, devices: Forecast | None, optimizer: str) -> dict[str, str]:
    """The lines on bytes: of one device, and of each device of a group where one is asked for."""
    lines = {"memory": memory.describe(optimizer)}
    if devices is not None:
        lines["device"] = devices.describe(optimizer)
    return lines


def _wrapped(start: str, rule: str, width: int) -> list[str]:
    """One row; the rest of a long rule below its first part, or all of it where hardly a column is left for it."""
    if len(start) + len(rule) <= width:
        return [start + rule]
    if width - len(start) >= _MIN_RULE_WIDTH:
        return textwrap.wrap(
            rule, width, initial_indent=start, subsequent_indent=" " * len(start), break_on_hyphens=False
        )
    below = textwrap.wrap(rule, max(width, _MIN_RULE_WIDTH + 8), initial_indent=" " * 8, subsequent_indent=" " * 8)
    return [start.rstrip(), *below]
