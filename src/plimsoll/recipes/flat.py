"""The options of a recipe's parts as one flat list: each has one name, and stands in one part.

Some options say the same thing in other words: `--target-params` and a shape, `--steps` and `--epochs`. A preset may
have set one of them; then what the user gives counts, and the preset's gives way (`Part.gives_way`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from plimsoll.errors import DataError, RecipeError, did_you_mean, names_in_words
from plimsoll.options import COUNTED, Option, flag_of, notes_of, options_of, value_of
from plimsoll.recipes.recipe import Recipe

NAMES_OF_DATA = ("data", "dataset_id")
"""Names of the option that names data; a recipe has one of them, and understands the other in Python."""
NOTHING = (None, "None", "none", "")
"""Values that say nothing, so that nothing gives way to them; "None" is what the command line calls None."""


def rows(recipe: Recipe) -> tuple[Option, ...]:
    """Returns the options of all parts, with the recipe's values as their defaults."""
    return tuple(option for part in recipe.parts.values() for option in options_of(part))


def gives_way(recipe: Recipe) -> dict[str, Mapping[str, Any]]:
    """Returns the options that reset others, of all parts."""
    return {name: others for part in recipe.parts.values() for name, others in part.gives_way.items()}


def giving_way(recipe: Recipe, typed: Mapping[str, Any]) -> tuple[Recipe, str]:
    """Returns the recipe without what gives way to the options that a user typed.

    Args:
        recipe: Recipe as it was before the user's options.
        typed: Options that the user typed, with their values; a value may be a word.

    Returns:
        The recipe, in which the typed options are not set yet, and a clause that says what gave way; empty if nothing
        did.
    """
    values = recipe.options
    neutral: dict[str, Any] = {}
    clauses = []
    for name, others in gives_way(recipe).items():
        if name not in typed or typed[name] in NOTHING or not typed.keys().isdisjoint(others):
            continue
        gone = [other for other, value in others.items() if values[other] != value and other not in neutral]
        neutral |= {other: others[other] for other in gone}
        if gone:
            verb = "gives" if len(gone) == 1 else "give"
            clauses.append(f"{_settings(recipe, gone)} {verb} way to {flag_of(name)}")
    return recipe.replace(**neutral), "; ".join(clauses)


def require_one_side(recipe: Recipe, typed: Mapping[str, Any]) -> None:
    """Raises RecipeError if the user gave two options that say the same in other words."""
    others_of = gives_way(recipe)
    set_by_user = [name for name in typed if typed[name] not in NOTHING]
    for name in set_by_user:
        other = next((other for other in others_of.get(name, ()) if other in set_by_user), None)
        if other is not None and name in others_of.get(other, ()):
            raise RecipeError(
                f"{flag_of(name)} {typed[name]} and {flag_of(other)} {typed[other]} say the same in other words: leave"
                " one of the two out"
            )


def overridden(recipe: Recipe, options: Mapping[str, Any], *, name: str = "") -> Recipe:
    """Returns the recipe with the options, each of which may take the place of what the recipe has set.

    Args:
        recipe: Recipe to change.
        options: Values by name; a count may be a text like "5M".
        name: Name of the recipe, for refusals.

    Raises:
        RecipeError: The recipe has no such option, or refuses its value.
    """
    known = {option.name: option for option in rows(recipe)}
    title = f"the recipe {name}" if name else "this recipe"
    options = with_own_names(options, known)
    for option in options:
        if option not in known:
            command = f"`plimsoll train {name or 'RECIPE'} --help`"
            hint = did_you_mean(option, known) or f"; it has {names_in_words(known, all_of_them=command)}"
            raise RecipeError(f"{title} has no option {option}{hint}")

    # A count is a word like 5M in Python, too.
    values = dict(options)
    for option, value in options.items():
        if isinstance(value, str) and COUNTED in notes_of(known[option].kind):
            values[option] = value_of(known[option], value)
    changed = giving_way(recipe, values)[0].replace(**values)
    require_one_side(recipe, values)
    return changed


def with_own_names(options: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Returns options in which data has the recipe's own name for it: `data`, or `dataset_id` of texts and chats.

    Args:
        options: Values by name.
        known: Names of the recipe's options.

    Raises:
        RecipeError: The data is given under both names.
    """
    own = next((name for name in NAMES_OF_DATA if name in known), None)
    other = next((name for name in NAMES_OF_DATA if name in options and name not in known), None)
    if own is None or other is None:
        return dict(options)
    if own in options:
        raise RecipeError(f"{own} and {other} are the same option of this recipe: give one of them")
    return {own if name == other else name: value for name, value in options.items()}


def absent_data(recipe: Recipe) -> dict[str, str]:
    """Returns options with the data that they name, of data that is neither here nor an id of the Hugging Face hub."""
    from plimsoll.data import STANDARD_LIBRARY
    from plimsoll.data.text.opening import require_named

    absent: dict[str, str] = {}
    for name in ("dataset_id", "validation_id"):
        value = recipe.options.get(name)
        if not value or value == STANDARD_LIBRARY:
            continue
        try:
            require_named(value)
        except DataError:
            absent[flag_of(name)] = value
    return absent


def set_by_recipe(recipe: Recipe, message: str, typed: Collection[str], *, name: str) -> str:
    """Returns a clause on what a refusal names besides the user's options; empty if there is nothing.

    Options that have the default of their part are left out.

    Args:
        recipe: Recipe as it was before the user's options.
        message: The refusal.
        typed: Options that the user typed.
        name: Name of the recipe.
    """
    in_message = {flag.replace("-", "_") for flag in re.findall(r"--([a-z][a-z0-9-]*)", message)}
    values = recipe.options
    defaults = {
        option.name: option.default
        for part in recipe.parts.values()
        for option in options_of(type(part))
        if option.name in in_message
    }
    own = [option for option in defaults if option not in typed and values[option] != defaults[option]]
    if not own or defaults.keys().isdisjoint(typed):
        return ""
    return f" ({_settings(recipe, own)} {'is' if len(own) == 1 else 'are'} set by {name})"


def _settings(recipe: Recipe, names: Sequence[str]) -> str:
    """Returns options with their values, like "--width 128, --layers 4 and --heads 4"."""
    values = recipe.options
    words = []
    for name in names:
        value = values[name]
        shown = f"{value:,}" if isinstance(value, int) else value
        words.append(f"{flag_of(name)} {shown}")
    return " and ".join([part for part in (", ".join(words[:-1]), words[-1]) if part])


def chosen(recipe: Recipe, base: Recipe | None = None) -> dict[str, Any]:
    """Returns the options that are not as in `base`, or as by default."""
    if base is None:
        before = {option.name: option.default for part in recipe.parts.values() for option in options_of(type(part))}
    else:
        before = base.options
    return {name: value for name, value in recipe.options.items() if value != before.get(name, dataclasses.MISSING)}
