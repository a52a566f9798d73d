"""Recipes for tests: presets by name, with some options changed."""

from plimsoll.recipes.recipe import Recipe
from plimsoll.recipes.registry import preset


def made(name: str, **options) -> Recipe:
    """Returns a preset with other values of some options, which must not contradict those that it has."""
    return preset(name).replace(**options)
