"""The options of a recipe's parts as one flat list: each has one name, and belongs to one part.

Some options conflict: `--target-params` with sizes of the model, `--steps` with `--epochs`. If a preset sets one and
the user another, the user's value counts, and the preset's option is reset (`Part.gives_way`).
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from plimsoll.errors import DataError, RecipeError
from plimsoll.options import Option, Options, flag_of, options_of
from plimsoll.recipes.recipe import Recipe

NAMES_OF_DATA = ("data", "dataset_id")
"""Two names of the option for data. A recipe has one of them, and accepts the other in Python."""
NOTHING = (None, "none", "")
"""Values that mean "not set". An option with one of them does not reset the options that conflict with it."""


def rows(recipe: Recipe) -> tuple[Option, ...]:
    """Returns the options of all parts, with the recipe's values as their defaults."""
    return tuple(option for part in recipe.parts.values() for option in options_of(part))


def giving_way(recipe: Recipe, typed: Mapping[str, Any]) -> tuple[Recipe, str]:
    """Returns the recipe after a reset of the options that conflict with those that a user typed.

    Args:
        recipe: Recipe as it was before the user's options.
        typed: Values by the names of the options that the user typed.

    Returns:
        The recipe, in which the typed options are not set yet, and a clause that names the options that were reset;
        empty if there are none.

    Raises:
        RecipeError: Two typed options conflict, and one of them has the value that a reset would give it.
    """
    values = recipe.options
    neutral: dict[str, Any] = {}
    clauses = []
    for part in recipe.parts.values():
        for name, others in part.gives_way.items():
            if typed.get(name) in NOTHING or _are_typed(name, others, typed):
                continue
            gone = [other for other, value in others.items() if values[other] != value and other not in neutral]
            neutral |= {other: others[other] for other in gone}
            if gone:
                verb = "gives" if len(gone) == 1 else "give"
                words = [f"{flag_of(other)} {_shown(values[other])}" for other in gone]
                clauses.append(f"{', '.join(words)} {verb} way to {flag_of(name)}")
    return recipe.replace(**neutral), "; ".join(clauses)


def _are_typed(name: str, others: Mapping[str, Any], typed: Mapping[str, Any]) -> bool:
    """Returns True if one of `others`, the options that are reset for the option `name`, was typed, too.

    Raises RecipeError if it was typed with the value of a reset: its part sees other conflicts, but not this one.
    """
    too = {other: value for other, value in typed.items() if other in others}
    for other, value in too.items():
        if value == others[other] and value not in NOTHING:
            raise RecipeError(
                f"{flag_of(name)} {typed[name]} and {flag_of(other)} {_shown(value)} set the same thing: leave one of"
                " the two out"
            )
    return bool(too)


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else value


def overridden(recipe: Recipe, options: Mapping[str, Any]) -> Recipe:
    """Returns the recipe with these options, after a reset of the options that conflict with them.

    Args:
        recipe: Recipe to change.
        options: Values by the names of options.

    Raises:
        RecipeError: The recipe has no such option, or refuses its value.
    """
    options = with_own_names(options, recipe.options)
    return giving_way(recipe, options)[0].replace(**options)


def with_own_names(options: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Returns the options, with the recipe's own name for its data: `data`, or `dataset_id` for texts and chats.

    Args:
        options: Values by name.
        known: Names of the recipe's options.

    Raises:
        RecipeError: The data is given under both names.
    """
    # `data` may also be the data part itself (an `Options` object): it keeps its name.
    own = next((name for name in NAMES_OF_DATA if name in known), None)
    if own is None:
        return dict(options)
    if {*NAMES_OF_DATA} <= options.keys():
        raise RecipeError(f"{' and '.join(NAMES_OF_DATA)} are the same option of this recipe: give one of them")
    return {
        own if name in NAMES_OF_DATA and not isinstance(value, Options) else name: value
        for name, value in options.items()
    }


def unresolvable_data(recipe: Recipe) -> dict[str, DataError]:
    """Returns an error, by flag, for each option that names neither a file, a folder nor a possible Hugging Face id.

    Uses no network.
    """
    from plimsoll.data import EMBEDDED
    from plimsoll.data.text.opening import require_named

    absent: dict[str, DataError] = {}
    for name in ("dataset_id", "validation_id"):
        value = recipe.options.get(name)
        if not value or value in EMBEDDED:
            continue
        try:
            require_named(value)
        except DataError as problem:
            absent[flag_of(name)] = problem
    return absent


def chosen(recipe: Recipe, base: Recipe | None = None) -> dict[str, Any]:
    """Returns the options whose values differ from those of `base`; from the defaults if `base` is None."""
    if base is None:
        before = {option.name: option.default for part in recipe.parts.values() for option in options_of(type(part))}
    else:
        before = base.options
    return {name: value for name, value in recipe.options.items() if value != before.get(name, dataclasses.MISSING)}
