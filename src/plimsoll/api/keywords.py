"""Keyword arguments of `plimsoll.plan` and `plimsoll.train` for options of a recipe, with hints for misspelt names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from plimsoll.errors import RecipeError, did_you_mean, names_in_words
from plimsoll.levers.registry import LEVERS
from plimsoll.recipes.flat import overridden, with_own_names
from plimsoll.recipes.own.files import short_name
from plimsoll.recipes.own.recipe import recipe_of
from plimsoll.recipes.recipe import Pinned, Recipe
from plimsoll.recipes.registry import preset, recipes_with
from plimsoll.recipes.saved import name_of


class Request(NamedTuple):
    """Recipe of a call like `plimsoll.plan(...)`, and the memory-saving options ("levers") that the call fixes."""

    recipe: Recipe
    pins: dict[str, Any]
    """Values of levers (memory-saving options), by name, that every plan must have."""
    given_name: str | None
    """Name that the user gave the recipe, or else the name of its preset or file; None if there is neither."""

    @property
    def name(self) -> str:
        """Name of the recipe in messages: the user's name, or else the recipe's kind or file."""
        return self.given_name or name_of(self.recipe)


def read_request(
    recipe: Any,
    fields: Mapping[str, Any] | None = None,
    *,
    verb: str,
    options: Iterable[str] = (),
    name: str | None = None,
    pins: Mapping[str, Any] | None = None,
) -> Request:
    """Returns the recipe of a call, changed by `fields`, and the levers (memory-saving options) that the call fixes.

    Options of the recipe that conflict with `fields` are reset.

    Args:
        recipe: A recipe, the name of a preset or a file, or an object of a user's own class.
        fields: New values of the recipe's options, by name. A count may be text like `5M`.
        verb: Name of the called function, for error messages.
        options: Names of the called function's own options.
        name: Name that the user gives the recipe.
        pins: Values of fixed levers, by name, besides those of a `Pinned` recipe.

    Raises:
        RecipeError: `recipe` is not a recipe, a name in `fields` is unknown, or a value has the wrong type.
    """
    levers = _as_levers(pins)
    if isinstance(recipe, Pinned):
        levers = {**recipe.pins, **levers}
        recipe = recipe.recipe
    if isinstance(recipe, str):
        name = name or short_name(recipe)
        recipe = preset(recipe)
    recipe = recipe_of(recipe)
    if not isinstance(recipe, Recipe):
        advice = ""
        if callable(recipe):
            advice = (
                ". A loss of your own is planned first: plimsoll.plan(loss, params, batch, optimizer=...).train(init,"
                " data)"
            )
        raise RecipeError(
            f"plimsoll.{verb} takes a recipe, the name of a preset, or the name of a file with a recipe, got a"
            f" {type(recipe).__name__}{advice}"
        )
    request = Request(recipe, levers, name)
    return _with_fields(request, fields, options, verb=verb) if fields else request


def _as_levers(pins: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns fixed levers (memory-saving options) as a dict. Raises RecipeError if `pins` is not a mapping."""
    try:
        return dict(pins or {})
    except (TypeError, ValueError):
        kind = type(pins).__name__
        raise RecipeError(f'pins are levers by name, like {{"micro_batch": 8}}, got a {kind}') from None


def _with_fields(request: Request, fields: Mapping[str, Any], options: Iterable[str], *, verb: str) -> Request:
    """Returns the request with some fields of its recipe changed. Raises RecipeError for an unknown field."""
    recipe = request.recipe
    own = [*recipe.options, *recipe.parts]
    fields = with_own_names(fields, own)
    for field in fields:
        others = [] if field in own else recipes_with(field)
        if others:
            raise RecipeError(
                f"the recipe {request.name} has no option {field}, which is one of {names_in_words(others)}"
            )
    command = f"`plimsoll {verb} {request.name} --help`"
    require_options(fields, own, verb=f"plimsoll.{verb} of {request.name}", others=options, listed=command)
    return request._replace(recipe=overridden(recipe, fields))


def options_of(function: Callable[..., Any]) -> list[str]:
    """Returns the names of a function's keyword-only parameters."""
    return [each.name for each in inspect.signature(function).parameters.values() if each.kind is each.KEYWORD_ONLY]


def require_options(
    options: Mapping[str, Any],
    known: Collection[str],
    *,
    verb: str,
    others: Iterable[str] = (),
    listed: str = "docs/api.md",
) -> None:
    """Raises RecipeError for the first unknown option, with the most similar known name.

    Args:
        options: The user's values, by the typed names.
        known: Names of known options.
        verb: Name of the called function for the message, like "plimsoll.plan of a loss".
        others: Further names to suggest for a misspelt one.
        listed: Page or command that lists all options.
    """
    for name, value in options.items():
        if name in known:
            continue
        if name in LEVERS:
            raise RecipeError(f"{verb} takes levers together: pins={{{name!r}: {value!r}}} keeps {name} so")
        meant = did_you_mean(name, [*known, *others, *LEVERS])
        there_are = f"; there are {names_in_words(known, all_of_them=listed)}"
        raise RecipeError(f"{verb} has no option {name}{meant or there_are}")
