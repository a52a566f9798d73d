"""Options of a recipe as keywords of `plimsoll.plan` and `plimsoll.train`, and what a misspelt name was to be."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from plimsoll.errors import RecipeError, did_you_mean, names_in_words
from plimsoll.levers.registry import LEVERS
from plimsoll.recipes.flat import overridden, with_own_names
from plimsoll.recipes.own.recipe import recipe_of
from plimsoll.recipes.recipe import Pinned, Recipe
from plimsoll.recipes.registry import preset, recipes_with
from plimsoll.recipes.saved import name_of


def options_of(function: Callable[..., Any]) -> list[str]:
    """Returns the names of a function's own keywords."""
    return [each.name for each in inspect.signature(function).parameters.values() if each.kind is each.KEYWORD_ONLY]


def with_fields(
    recipe: Recipe | Pinned | str, fields: Mapping[str, Any], *, verb: str, options: Iterable[str]
) -> Recipe | Pinned | str:
    """Returns the recipe with other values of some of its fields, to which what it says in other words gives way.

    Args:
        recipe: The recipe, or the name of a preset or a file.
        fields: Values by the fields' names; a count may be a text like `5M`.
        verb: Name of the function that was called, for refusals.
        options: Names of its own options.

    Raises:
        RecipeError: A name is neither a field of the recipe nor an option, or a value is of another kind.
    """
    recipe = require_recipe(recipe, verb=verb)
    if not fields:
        return recipe
    if isinstance(recipe, Pinned):
        changed = with_fields(recipe.recipe, fields, verb=verb, options=options)
        return dataclasses.replace(recipe, recipe=changed)
    called = recipe if isinstance(recipe, str) else name_of(recipe)
    whole = preset(recipe) if isinstance(recipe, str) else recipe
    own = [*whole.options]
    fields = with_own_names(fields, own)
    for name in fields:
        if name in own:
            continue
        if name in LEVERS:
            raise RecipeError(f"{verb} takes levers together: pins={{{name!r}: {fields[name]!r}}} keeps {name} so")
        others = recipes_with(name)
        if others:
            raise RecipeError(f"the recipe {called} has no option {name}, which is one of {names_in_words(others)}")
        hint = did_you_mean(name, [*options, *own, *LEVERS])
        raise RecipeError(
            f"neither plimsoll.{verb} nor the recipe {called} has an option {name}"
            + (hint or f": `plimsoll {verb} {called} --help` lists them")
        )
    return overridden(whole, fields)


def require_recipe(recipe: Any, *, verb: str) -> Recipe | Pinned | str:
    """Returns a recipe, or the name of one; of an object of a user's own class what it composes.

    Args:
        recipe: What was given as one.
        verb: Name of the function that was called.

    Raises:
        RecipeError: It is none of these.
    """
    recipe = recipe_of(recipe)
    if isinstance(recipe, Recipe | Pinned | str):
        return recipe
    own = ". A loss of your own is planned first: plimsoll.plan(loss, params, batch, optimizer=...).train(init, data)"
    raise RecipeError(
        f"plimsoll.{verb} takes a recipe, the name of a preset, or that of a file with a recipe, got a"
        f" {type(recipe).__name__}{own if callable(recipe) else ''}"
    )


def require_options(options: Iterable[str], known: Iterable[str], *, verb: str) -> None:
    """Raises RecipeError for the first option that is not known, with the one that was meant.

    Args:
        options: Names of the options that were given.
        known: Names of those there are.
        verb: What was called, like "plimsoll.plan of a loss".
    """
    known = [*known]
    for name in options:
        if name in LEVERS and name not in known:
            raise RecipeError(f"{verb} takes levers together: pins={{{name!r}: ...}} keeps a value of {name}")
        if name not in known:
            hint = (
                did_you_mean(name, [*known, *LEVERS])
                or f"; there are {names_in_words(known, all_of_them='docs/api.md')}"
            )
            raise RecipeError(f"{verb} has no option {name}{hint}")
