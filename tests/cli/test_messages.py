"""Every error that the source raises has the four parts, also those that no other test provokes."""

from __future__ import annotations

import ast
from pathlib import Path

from frostline import errors

PARTS = ("where", "possible", "fix")
NAMES = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)} - {
    "FrostlineError"
}


def raised(path: Path) -> list[tuple[str, set[str]]]:
    """Place and given parts of every error or problem that the file makes."""
    found: list[tuple[str, set[str]]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        if node.func.id not in NAMES | {"Problem"}:
            continue
        given = {keyword.arg for keyword in node.keywords}
        if "problems" in given or None in given:
            continue
        if node.func.id == "Problem":
            given |= set(("what", *PARTS)[: len(node.args)])
        never = {k.arg for k in node.keywords if isinstance(k.value, ast.Constant) and k.value.value is None}
        found.append((f"{path.name}:{node.lineno}", {part for part in given - never if part}))
    return found


def test_every_error_says_where_what_was_possible_and_what_to_do(repository: Path) -> None:
    files = sorted((repository / "src" / "frostline").rglob("*.py"))
    places = [entry for path in files for entry in raised(path)]
    assert len(places) > 150
    assert [(place, part) for place, given in places for part in PARTS if part not in given] == []
