"""Finds a recipe by name: the built-in ones, those registered in this process, and those of other distributions.

Imports a recipe's file only when it is asked for. Knows nothing of what recipes do.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, TypeVar

from frostline.config.origin import Origin
from frostline.config.recipe_names import (
    ALIASES,
    BUILT_IN,
    ENTRY_POINTS,
    add_recipe_name,
    describe_recipe_names,
    recipe_names,
)
from frostline.config.wording import nearest
from frostline.errors import ConfigError

if TYPE_CHECKING:
    from .recipe import Recipe

_registered: dict[str, type[Recipe]] = {}
_Class = TypeVar("_Class", bound="type[Recipe]")


def register(name: str) -> Callable[[_Class], _Class]:
    """Class decorator: makes a `Recipe` known as `name`.

    Raises:
        ValueError: another class has that name.
    """

    def add(recipe: _Class) -> _Class:
        known = _registered.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (recipe.__module__, recipe.__qualname__):
            raise ValueError(f"recipe {name!r} is already {known.__module__}.{known.__qualname__}")
        _registered[name] = recipe
        add_recipe_name(name)
        recipe.name = name
        return recipe

    return add


def find_recipe(name: str, origin: Origin | None = None) -> Recipe:
    """The recipe called `name`.

    Raises:
        ConfigError: there is none.
    """
    name = ALIASES.get(name, name)
    if name not in _registered:
        if name in BUILT_IN:
            import_module(f"frostline.recipes.{name}")
        else:
            for entry in entry_points(group=ENTRY_POINTS, name=name):
                entry.load()
    if name not in _registered:
        near = nearest(name, recipe_names())
        raise ConfigError(
            f"there is no recipe {name!r}",
            where=origin or "recipe",
            possible=describe_recipe_names() + (f"; nearest: {near}" if near else ""),
            fix="name one of these, or install the package that brings the recipe",
        )
    return _registered[name]()
