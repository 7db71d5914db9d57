"""Draws a plan as a table for a terminal: equal blocks folded, the deciding rule beside each row.

Reads the plan only; lines about data and steps are handed in as facts.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from frostline.trainability.decision import Decision, Rule
from frostline.trainability.trained_rows import show_rows

if TYPE_CHECKING:
    from frostline.trainability.plan import TrainabilityPlan

_MAX_ROWS = 200
_MIN_RULE_WIDTH = 16
_MAX_ROWS_TEXT = 24


@dataclass
class _Node:
    """A module with what the table needs of its subtree."""

    path: str
    base: list[Decision]
    adapters: list[tuple[str, Decision]]  # (path of the adapted module, decision)
    children: list[_Node]
    own: list[Decision]


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
    root = _build(plan)
    rows: list[TableRow] = []
    _emit(root, plan, rows)
    return rows


def render_plan(plan: TrainabilityPlan, facts: Mapping[str, str], *, width: int) -> str:
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
    share = 100 * plan.num_trainable / max(plan.num_total, 1)
    summary = {
        "trains": f"{plan.num_trainable:,} of {plan.num_total:,} ({share:.2f} %)",
        "memory": _memory(plan, facts.get("optimizer", "AdamW")),
        **{key: text for key, text in facts.items() if key != "optimizer"},
    }
    lines.append("")
    labels = {key: "note" if key.startswith("note ") else key for key in summary}
    lines.extend(f"{labels[key]:<8} {text}" for key, text in summary.items())
    lines.extend(f"{'note':<8} {note}" for note in plan.notes)
    lines.append(f"{'plan':<8} {plan.digest[:8]}")
    return "\n".join(lines)


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


def _memory(plan: TrainabilityPlan, optimizer: str) -> str:
    weights = sum(_num_bytes(entry) for entry in plan.decisions.values())
    gradients = sum(_num_bytes(entry) for entry in plan.decisions.values() if entry.trains)
    states = {"sgd": 0, "adagrad": 1, "rmsprop": 1}.get(optimizer.lower(), 2)
    parts = {"weights": weights, "gradients": gradients, optimizer: gradients * states}
    return ", ".join(f"{name} {count / 1e6:,.1f} MB" for name, count in parts.items())


def _num_bytes(decision: Decision) -> int:
    dtype = getattr(torch, decision.dtype)
    assert isinstance(dtype, torch.dtype)
    return decision.num_elements * dtype.itemsize


def _build(plan: TrainabilityPlan) -> _Node:
    rows = [row for row in plan.modules if not row.is_adapter]
    nodes = {row.path: _Node(row.path, [], [], [], []) for row in rows}
    for row in rows:
        if row.path:
            nodes[_nearest(row.path.rpartition(".")[0], nodes)].children.append(nodes[row.path])
    for decision in plan.decisions.values():
        owner = nodes[_nearest(decision.path.rpartition(".")[0], nodes)]
        if decision.kind in ("adapter", "rows"):
            owner.adapters.append((owner.path, decision))
        else:
            owner.own.append(decision)
            owner.base.append(decision)
    for row in reversed(rows):
        node = nodes[row.path]
        for child in node.children:
            node.base.extend(child.base)
            node.adapters.extend(child.adapters)
    return nodes[""]


def _nearest(path: str, nodes: Mapping[str, _Node]) -> str:
    while path not in nodes:
        path = path.rpartition(".")[0]
    return path


def _is_uniform(node: _Node) -> bool:
    """Whether one row can tell the subtree: one rule, or a baseline plus rules that pick single parameters."""
    rules = {decision.rule for decision in node.base if not decision.rule.single}
    return len(rules) <= 1 and len({decision.kind for decision in node.base}) <= 1


def _is_block(node: _Node) -> bool:
    """A numbered part of a stack: where the table stops to descend for the sake of adapters."""
    return node.path.rpartition(".")[2].isdecimal()


def _emit(node: _Node, plan: TrainabilityPlan, rows: list[TableRow]) -> None:
    if not node.base and not node.adapters:
        return
    if node.path and _is_uniform(node) and (not node.adapters or _is_block(node) or not node.children):
        rows.append(_row(node.path, [node]))
        rows.extend(_adapter_rows([node], plan))
        return
    if node.own:
        label = f"{node.path or '(root)'} (own parameters)" if node.children else node.path or "(root)"
        if _is_uniform(_Node(node.path, node.own, [], [], node.own)):
            rows.append(_row(label, [_Node(node.path, node.own, [], [], node.own)]))
        else:
            rows.extend(
                TableRow(
                    decision.path, decision.num_elements, decision.num_elements * decision.trains, str(decision.rule)
                )
                for decision in node.own
            )
    own_adapters = [pair for pair in node.adapters if pair[0] == node.path]
    if own_adapters:
        rows.extend(_adapter_rows([_Node(node.path, [], own_adapters, [], [])], plan))
    for group in _group_equal(node.children):
        if len(group) == 1:
            _emit(group[0], plan, rows)
        elif all(_is_uniform(member) for member in group):
            rows.append(_row(_span(group), group))
            rows.extend(_adapter_rows(group, plan))
        else:
            _emit_folded(group, plan, rows)


def _emit_folded(group: Sequence[_Node], plan: TrainabilityPlan, rows: list[TableRow]) -> None:
    """Several equal blocks that one row cannot tell: a heading, then the parts of one block with the counts of all."""
    inner: list[TableRow] = []
    _emit(_Node(group[0].path, group[0].base, group[0].adapters, group[0].children, group[0].own), plan, inner)
    total = sum(decision.num_elements for member in group for decision in member.base)
    trained = sum(decision.num_elements for member in group for decision in member.base if decision.trains)
    rows.append(TableRow(_span(group), total, trained, "several rules, below"))
    for row in inner:
        name = row.module.removeprefix(group[0].path).lstrip(". ")
        params = None if row.params is None else row.params * len(group)
        rows.append(TableRow(name, params, row.trains * len(group), row.decided_by, row.indent + 1, row.is_new))


def _span(group: Sequence[_Node]) -> str:
    first, last = group[0].path, group[-1].path.rpartition(".")[2]
    return f"{first}-{last} ({len(group)} equal)"


def _row(label: str, group: Sequence[_Node]) -> TableRow:
    base = [decision for node in group for decision in node.base]
    if not base:
        return TableRow(label, None, 0, "")
    total = sum(decision.num_elements for decision in base)
    trained = sum(decision.num_elements for decision in base if decision.trains)
    return TableRow(label, total, trained, _rules(base), is_new=all(entry.kind == "new" for entry in base))


def _rules(base: Sequence[Decision]) -> str:
    """The rules of a row, those of trained parameters first, each once; single ones with their count."""
    counts: dict[Rule, int] = {}
    for decision in sorted(base, key=lambda entry: not entry.trains):
        counts[decision.rule] = counts.get(decision.rule, 0) + 1
    if len(counts) == 1:
        return str(next(iter(counts)))
    return "; ".join(f"{rule} ({count})" if rule.single else str(rule) for rule, count in counts.items())


def _adapter_rows(group: Sequence[_Node], plan: TrainabilityPlan) -> list[TableRow]:
    """Adapters below the row of their block(s), summed over equal blocks and over equal children of the block."""
    label = plan.adapters.label if plan.adapters else "adapter"
    sums: dict[tuple[str, str], list[int]] = {}
    for node in group:
        for path, decision in node.adapters:
            relative = _fold_numbers(path[len(node.path) + 1 :] if node.path else path)
            relative = relative or group[0].path.rpartition(".")[2]
            shown = f"{relative}  {_rows_label(decision, plan) if decision.kind == 'rows' else f'+{label}'}"
            entry = sums.setdefault((shown, str(decision.rule)), [0, 0])
            entry[0] += decision.num_elements
            entry[1] += decision.num_elements if decision.trains else 0
    return [
        TableRow(
            shown,
            total if total != trained else None,
            trained,
            rule,
            indent=1,
        )
        for (shown, rule), (total, trained) in sums.items()
    ]


def _rows_label(decision: Decision, plan: TrainabilityPlan) -> str:
    """`rows 32000:32005 (5 of 32,005)`."""
    rows, weight = decision.rows or (), decision.path.rpartition(".")[0] + ".weight"
    text = show_rows(rows)
    shown = f"rows {text} (" if len(text) <= _MAX_ROWS_TEXT else "rows ("
    return f"{shown}{len(rows):,} of {plan.decisions[weight.lstrip('.')].shape[0]:,})"


def _fold_numbers(path: str) -> str:
    return ".".join("*" if part.isdecimal() else part for part in path.split("."))


def _group_equal(children: Sequence[_Node]) -> list[list[_Node]]:
    """Runs of consecutive numbered children that decide the same things of the same shapes."""
    groups: list[list[_Node]] = []
    previous: object = None
    for child in children:
        signature = _signature(child) if child.path.rpartition(".")[2].isdecimal() else object()
        if groups and signature == previous:
            groups[-1].append(child)
        else:
            groups.append([child])
        previous = signature
    return groups


def _signature(node: _Node) -> object:
    skip = len(node.path)
    return (
        [(entry.path[skip:], entry.shape, entry.trains, entry.rule) for entry in node.base],
        [(entry.path[skip:], entry.shape, entry.trains, entry.rule) for _, entry in node.adapters],
    )
