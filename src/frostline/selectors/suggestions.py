"""Explains why a selector selects nothing, with the nearest real names. Runs only on the way to an error."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from frostline.errors import Problem
from frostline.tree import ModuleTree

if TYPE_CHECKING:
    from frostline.selectors.selector import Selector

MAX_SUGGESTIONS = 5


def nearest(value: str, candidates: Sequence[str], limit: int = MAX_SUGGESTIONS) -> list[str]:
    """The candidates most like `value`, best first; those that contain its plain text come before merely similar ones."""
    plain = re.sub(r"[*?\[\]^$\\()|+]", "", value).strip(".")
    unique = list(dict.fromkeys(candidates))
    containing = [name for name in unique if plain and plain.lower() in name.lower()]
    similar = difflib.get_close_matches(plain, unique, n=limit, cutoff=0.6)
    return list(dict.fromkeys(containing[:limit] + similar))[:limit]


def tails(paths: Sequence[str], num_components: int) -> list[str]:
    """The last `num_components` components of each path, each once, numbers of blocks folded away."""
    return list(dict.fromkeys(".".join(path.split(".")[-num_components:]) for path in paths if path))


def describe_miss(selector: Selector, tree: ModuleTree, *, role: str = "", matches: Sequence[int] = ()) -> Problem:
    """The problem to report for a selector that selects nothing in `tree`."""
    label = f"`{role}` of the selector" if role else "selector"
    base_modules = [ref.path for ref in tree.modules if not ref.is_adapter]
    param_paths = [ref.path for ref in tree.params]
    if matches:
        names = ", ".join(tree.modules[index].path or "the root" for index in matches[:MAX_SUGGESTIONS])
        return Problem(
            f"{label} {selector} matches {len(matches)} modules, but nothing below them is left to select",
            str(selector.origin),
            f"matched: {names}",
            "choose a module that holds parameters, narrow `except`, or add `optional: true`",
        )
    if selector.selects_params:
        what, candidates = "parameters", param_paths
        tailed = _params_named(selector.kind.pattern, param_paths)
        if tailed:
            return Problem(
                f"{label} {selector} matched 0 parameters: a `param` pattern covers the full path",
                str(selector.origin),
                f"{len(tailed)} parameters end in that name, {tailed[0]} among them",
                f'write {{param: "*.{selector.kind.pattern}"}}',
            )
    elif selector.kind.key == "type":
        what = "modules"
        candidates = [type(ref.module).__name__ for ref in tree.modules if not ref.is_adapter]
    else:
        what, candidates = "modules", base_modules
        named = _params_named(selector.kind.pattern, param_paths)
        if named:
            return Problem(
                f"{label} {selector} names a parameter, but here a module is meant",
                str(selector.origin),
                f"parameters of that name: {', '.join(named[:MAX_SUGGESTIONS])}",
                f'write {{param: "*.{selector.kind.pattern.removeprefix("*.")}"}}'
                if "." not in selector.kind.pattern.removeprefix("*.")
                else f'write {{param: "{named[0]}"}}',
            )
    pattern = selector.kind.pattern
    found: list[str] = []
    if selector.kind.key != "type":
        found = nearest(pattern, tails(candidates, pattern.count(".") + 1))
    found = list(dict.fromkeys(found + nearest(pattern, candidates)))[:MAX_SUGGESTIONS]
    if found:
        possible = f"nearest: {', '.join(found)}"
    elif selector.kind.key == "type":
        possible = f"classes here: {', '.join(list(dict.fromkeys(candidates))[:12])}"
    else:
        top = [ref.path for ref in (tree.modules[index] for index in tree.children(0)) if not ref.is_adapter]
        shown = ", ".join(top or param_paths[:MAX_SUGGESTIONS])
        possible = f"top level of this model: {shown}"
    return Problem(
        f"{label} {selector} matched 0 {what}",
        str(selector.origin),
        possible,
        "correct the name, or add `optional: true` if this model need not have it",
    )


def _params_named(pattern: str, param_paths: Sequence[str]) -> list[str]:
    plain = pattern.removeprefix("*.")
    if any(character in plain for character in "*?["):
        return []
    return [path for path in param_paths if path == plain or path.endswith("." + plain)]
