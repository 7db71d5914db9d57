"""Selectors: frozen, printable predicates over the paths of a model.

A config value is parsed into a `Selector` (grammar), and a selector is applied to a `ModuleTree` (matching). Knows
nothing of freezing or adapters: the same selectors choose modules to freeze, adapter targets and optimizer groups.
"""

from frostline.selectors.grammar import OF_FROZEN, OF_TRAINED, parse_selector, parse_selectors, selector_problems
from frostline.selectors.matching import Selection, require_matches
from frostline.selectors.selector import Kind, Selector, register_kind

__all__ = [
    "OF_FROZEN",
    "OF_TRAINED",
    "Kind",
    "Selection",
    "Selector",
    "parse_selector",
    "parse_selectors",
    "register_kind",
    "require_matches",
    "selector_problems",
]
