"""Which names `recipe` may have: the built-in ones, their aliases, those registered in this process, those of packages.

The one table of names; asked whenever a config is read or a message is made. Knows nothing of recipes themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points

from frostline.config.wording import join_or

ENTRY_POINTS = "frostline.recipes"
BUILT_IN = ("sequence_classification", "causal_lm")
ALIASES: Mapping[str, str] = {"sft": "causal_lm"}
_registered: list[str] = []


def add_recipe_name(name: str) -> None:
    """Lets a config say `name`; a name that is known already stays as it is."""
    if name not in BUILT_IN and name not in _registered:
        _registered.append(name)


def is_recipe_name(name: str) -> bool:
    """Whether `name` is one of `recipe_names()`; looks into the installed packages only for what is not known here."""
    return name in BUILT_IN or name in _registered or bool(entry_points(group=ENTRY_POINTS, name=name))


def recipe_names() -> tuple[str, ...]:
    """The names, without aliases: built-in ones first, then those that were added, then those of installed packages."""
    return tuple(dict.fromkeys([*BUILT_IN, *_registered, *sorted(entry_points(group=ENTRY_POINTS).names)]))


def describe_recipe_names() -> str:
    """`sequence_classification, causal_lm (alias sft) or mine`, for messages."""
    aliases = {name: alias for alias, name in ALIASES.items()}
    names = [f"{name} (alias {aliases[name]})" if name in aliases else name for name in recipe_names()]
    return join_or(names)
