"""Finds a recipe by name: the built-in ones, those registered in this process, and those of other distributions.

Imports a recipe's file only when it is asked for. Knows nothing of what recipes do.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, TypeVar

from frostline.config.origin import Origin
from frostline.errors import ConfigError

if TYPE_CHECKING:
    from .recipe import Recipe

ENTRY_POINTS = "frostline.recipes"
_BUILT_IN = {
    "sequence_classification": "frostline.recipes.sequence_classification",
    "causal_lm": "frostline.recipes.causal_lm",
}
_ALIASES = {"sft": "causal_lm"}
_registered: dict[str, type[Recipe]] = {}
_Class = TypeVar("_Class", bound="type[Recipe]")


def register(name: str) -> Callable[[_Class], _Class]:
    """Class decorator: makes a `Recipe` known as `name`.

    Raises:
        ValueError: another class has that name.
    """

    def add(recipe: _Class) -> _Class:
        from frostline.config.models.config import RECIPE_NAMES  # here: finding a recipe must not wait for pydantic

        known = _registered.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (recipe.__module__, recipe.__qualname__):
            raise ValueError(f"recipe {name!r} is already {known.__module__}.{known.__qualname__}")
        _registered[name] = recipe
        if name not in RECIPE_NAMES:
            RECIPE_NAMES.append(name)  # so that a config may say it
        recipe.name = name
        return recipe

    return add


def recipe_names() -> list[str]:
    """Names that `find_recipe` knows, sorted."""
    return sorted({*_BUILT_IN, *_ALIASES, *_registered, *entry_points(group=ENTRY_POINTS).names})


def find_recipe(name: str, origin: Origin | None = None) -> Recipe:
    """The recipe called `name`.

    Raises:
        ConfigError: there is none.
    """
    name = _ALIASES.get(name, name)
    if name not in _registered:
        if name in _BUILT_IN:
            import_module(_BUILT_IN[name])
        else:
            for entry in entry_points(group=ENTRY_POINTS, name=name):
                entry.load()
    if name not in _registered:
        near = difflib.get_close_matches(name, recipe_names(), n=1)
        raise ConfigError(
            f"there is no recipe {name!r}",
            where=origin or "recipe",
            possible=", ".join(recipe_names()) + (f" (nearest: {near[0]})" if near else ""),
            fix="name one of these, or install the package that brings the recipe",
        )
    return _registered[name]()
