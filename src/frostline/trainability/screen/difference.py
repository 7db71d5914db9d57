"""What two plans decide differently, parameter by parameter, with the rules of both; equal lines folded.

Compares plans in their JSON form, so that one may come from a file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from frostline.trainability.screen.folding import span


@dataclass(frozen=True)
class Difference:
    """One parameter that only one of two plans has, or that they or one of their phases decide differently.

    Attributes:
        sign: `~` for decided otherwise, `-` only in the first plan, `+` only in the second.
        path: canonical path; of several folded parameters with ranges for numbers; empty for what is said of a phase.
        what: the difference in words, with the rules.
        count: parameters that the line stands for.
        phase: number of the phase that differs; None where the start does.
    """

    sign: str
    path: str
    what: str
    count: int = 1
    phase: int | None = None

    def __str__(self) -> str:
        of = f"{self.path}{f' ({self.count} parameters)' if self.count > 1 else ''}"
        if self.phase is None:
            return f"{self.sign} {of}: {self.what}"
        return f"{self.sign} phase {self.phase}: {of}{' ' * bool(of)}{self.what}"


def diff_plans(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[Difference]:
    """Differences of two plans in their JSON form, one for each parameter, in definition order."""
    left: Mapping[str, Any] = ours["parameters"]
    right: Mapping[str, Any] = theirs["parameters"]
    found: list[Difference] = []
    for path, entry in left.items():
        other = right.get(path)
        if other is None:
            found.append(Difference("-", path, f"{_word(entry)}, not in the other plan ({entry['rule']})"))
        elif entry["shape"] != other["shape"]:
            found.append(Difference("~", path, f"shape {entry['shape']} -> {other['shape']}"))
        elif _word(entry) != _word(other):
            found.append(
                Difference("~", path, f"{_word(entry)} -> {_word(other)} ({entry['rule']} -> {other['rule']})")
            )
    found.extend(
        Difference("+", path, f"{_word(entry)}, only in the other plan ({entry['rule']})")
        for path, entry in right.items()
        if path not in left
    )
    return [*found, *diff_phases(ours.get("phases", ()), theirs.get("phases", ()))]


def diff_phases(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> list[Difference]:
    """Differences between phases in their JSON form: of what both have, and all that a phase of only one does."""
    found: list[Difference] = []
    for number in range(1, max(len(ours), len(theirs)) + 1):
        left = ours[number - 1] if number <= len(ours) else None
        right = theirs[number - 1] if number <= len(theirs) else None
        if left is None or right is None:
            sign, alone = ("-", left) if right is None else ("+", right)
            assert alone is not None
            rate = "" if alone["lr"] is None else f", lr {alone['lr']:g}"
            found.append(Difference(sign, "", f"at {alone['at']}{rate}", 0, number))
        else:
            found.extend(
                Difference("~", "", f"{key} {_shown(left[key])} -> {_shown(right[key])}", 0, number)
                for key in ("at", "lr")
                if left[key] != right[key]
            )
        for key, verb in (("thaws", "starts to train"), ("freezes", "freezes")):
            before, after = (() if side is None else side[key] for side in (left, right))
            for sign, these, those in (("-", before, set(after)), ("+", after, set(before))):
                found.extend(Difference(sign, path, verb, 1, number) for path in these if path not in those)
    return found


def _shown(value: Any) -> str:
    return "that of the phase before" if value is None else str(value)


def fold_differences(differences: Iterable[Difference], parameters: Iterable[str] = ()) -> list[Difference]:
    """Lines that differ only in one number of the path as one line with the range; the sum of `count` stays.

    Args:
        differences: of `diff_plans`.
        parameters: canonical paths of both plans. A module of which every parameter differs alike is one line, then.
    """
    by_phase: dict[int | None, list[Difference]] = {}
    for line in differences:
        by_phase.setdefault(line.phase, []).append(line)
    known = set(parameters)
    return [line for lines in by_phase.values() for line in _fold(lines, known)]


def _fold(lines: list[Difference], parameters: set[str]) -> list[Difference]:
    lines = _fold_modules(lines, parameters)
    while True:
        folded = _fold_last_number(lines)
        if len(folded) == len(lines):
            return lines
        lines = folded


def _fold_modules(lines: list[Difference], parameters: set[str]) -> list[Difference]:
    if not parameters:
        return lines
    sizes = Counter(prefix for path in parameters for prefix in _modules_above(path))
    alike = Counter((prefix, line.sign, line.what) for line in lines for prefix in _modules_above(line.path))
    folded: dict[object, Difference] = {}
    for line in lines:
        whole = (path for path in _modules_above(line.path) if sizes[path] > 1)  # the outermost comes first
        path = next((path for path in whole if alike[path, line.sign, line.what] == sizes[path]), line.path)
        known = folded.get((path, line.sign, line.what))
        folded[path, line.sign, line.what] = replace(line, path=path, count=line.count + (known.count if known else 0))
    return list(folded.values())


def _modules_above(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


def _fold_last_number(lines: list[Difference]) -> list[Difference]:
    depth = max((line.path.count(".") for line in lines), default=0) + 1
    for position in range(depth - 1, -1, -1):
        groups: dict[object, list[Difference]] = {}
        for line in lines:
            parts = line.path.split(".")
            is_number = position < len(parts) and parts[position].isdecimal()
            pattern = (tuple(parts[:position]), tuple(parts[position + 1 :])) if is_number else line.path
            groups.setdefault((line.sign, pattern, line.what, line.count), []).append(line)
        if len(groups) < len(lines):
            return [_as_one(group, position) for group in groups.values()]
    return lines


def _as_one(group: list[Difference], position: int) -> Difference:
    if len(group) == 1:
        return group[0]
    parts = group[0].path.split(".")
    parts[position] = span([line.path.split(".")[position] for line in group])
    return replace(group[0], path=".".join(parts), count=sum(line.count for line in group))


def _word(entry: Mapping[str, Any]) -> str:
    rows = entry.get("rows")
    if entry["trains"] and rows is not None:
        return f"rows {rows} trained"
    return "trained" if entry["trains"] else "frozen"
