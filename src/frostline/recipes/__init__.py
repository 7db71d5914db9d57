"""Recipes: one short composition per task. Importing this package imports no recipe, no torch and no transformers.

A new recipe is one file: a subclass of `Recipe` under `@register("name")`, announced by another distribution through
the entry-point group `frostline.recipes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .registry import find_recipe, recipe_names, register

if TYPE_CHECKING:
    from .assembly import Assembly, assemble
    from .recipe import PreparedData, Recipe

_LAZY = {"Assembly": "assembly", "assemble": "assembly", "PreparedData": "recipe", "Recipe": "recipe"}

__all__ = ["Assembly", "PreparedData", "Recipe", "assemble", "find_recipe", "recipe_names", "register"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
