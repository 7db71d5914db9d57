"""What the selectors of a freeze config select in one tree: for the block and each of its phases."""

from __future__ import annotations

from collections.abc import Sequence

from frostline.errors import SelectorError
from frostline.selectors import Selection, Selector, require_matches
from frostline.trainability.legacy import legacy_problems
from frostline.trainability.phases.rules import PhaseRules
from frostline.trainability.rules import FreezeRules
from frostline.tree import ModuleTree

Selected = tuple[Selector, Selection]


def select_all(rules: FreezeRules, tree: ModuleTree) -> list[tuple[str, list[Selected], list[Selected]]]:
    """For the block and each of its phases: from when on, what it freezes, what it thaws."""
    selections = iter(require_selections(all_selectors(rules), tree))
    return [
        (
            f" from {block.at} on" if isinstance(block, PhaseRules) else "",
            [(selector, next(selections)) for selector in block.freeze],
            [(selector, next(selections)) for selector in block.unfreeze],
        )
        for block in (rules, *rules.phases)
    ]


def all_selectors(rules: FreezeRules) -> list[Selector]:
    """Those of the block and of its phases, in the order in which they count."""
    return [selector for block in (rules, *rules.phases) for selector in (*block.freeze, *block.unfreeze)]


def require_selections(selectors: Sequence[Selector], tree: ModuleTree) -> list[Selection]:
    """`require_matches`, with the one legacy key that must match something, too."""
    problems = legacy_problems(selectors, tree)
    try:
        selections = require_matches(selectors, tree)
    except SelectorError as error:
        raise SelectorError.from_problems([*problems, *error.problems]) from None
    if problems:
        raise SelectorError.from_problems(problems)
    return selections
