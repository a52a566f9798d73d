"""Options that a user gives over a recipe that is complete already, like a preset.

Some options say the same thing in other words: `--target-params` and a shape, `--steps` and `--epochs`. A preset may
have set one of them; then what the user gives counts, and the preset's gives way. A recipe lists such options in its
`gives_way`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from plimsoll.errors import DataError, RecipeError, did_you_mean, names_in_words
from plimsoll.options import COUNTED, hints_of, notes_of
from plimsoll.recipes.base import Recipe
from plimsoll.units import parse_count

NAMES_OF_DATA = ("data", "dataset_id")
"""Names of the option that names data; a recipe has one of them, and understands the other in Python."""
NOTHING = (None, "None", "none", "")
"""Values that say nothing, so that nothing gives way to them; "None" is what the command line calls None."""


def giving_way(recipe: Recipe, given: Mapping[str, Any]) -> tuple[Recipe, str]:
    """Returns the recipe without what gives way to the options that a user gave.

    Args:
        recipe: Recipe as it was before the user's options.
        given: Options that the user gave, by field, with their values; a value may be the word that was typed.

    Returns:
        The recipe, in which the options that were given are not set yet, and a clause that says what gave way; empty if
        nothing did.
    """
    neutral: dict[str, Any] = {}
    clauses = []
    for name, instead in recipe.gives_way.items():
        if name not in given or given[name] in NOTHING or not given.keys().isdisjoint(instead):
            continue
        gone = [other for other, value in instead.items() if getattr(recipe, other) != value and other not in neutral]
        neutral |= {other: instead[other] for other in gone}
        if gone:
            clauses.append(f"{_settings(recipe, gone)} {'gives' if len(gone) == 1 else 'give'} way to {option(name)}")
    return dataclasses.replace(recipe, **neutral), "; ".join(clauses)


def require_one_side(recipe: Recipe, given: Mapping[str, Any]) -> None:
    """Raises RecipeError if the user gave two options that say the same in other words."""
    said = [name for name in given if given[name] not in NOTHING]
    for name in said:
        other = next((other for other in recipe.gives_way.get(name, ()) if other in said), None)
        if other is not None and name in recipe.gives_way.get(other, ()):
            raise RecipeError(
                f"{option(name)} {given[name]} and {option(other)} {given[other]} say the same in other words: leave"
                " one of the two out"
            )


def overridden(recipe: Recipe, options: Mapping[str, Any], *, name: str = "") -> Recipe:
    """Returns the recipe with the options, each of which may take the place of what the recipe has set.

    Args:
        recipe: Recipe to change.
        options: Values by field; a count may be a text like "5M".
        name: Name of the recipe, for refusals.

    Raises:
        RecipeError: The recipe has no such option, or refuses its value.
    """
    fields = [field.name for field in dataclasses.fields(recipe)]
    called = f"the recipe {name}" if name else "this recipe"
    options = with_own_names(options, fields)
    for option in options:
        if option not in fields:
            command = f"`plimsoll train {name or 'RECIPE'} --help`"
            hint = did_you_mean(option, fields) or f"; it has {names_in_words(fields, all_of_them=command)}"
            raise RecipeError(f"{called} has no option {option}{hint}")
    hints = hints_of(type(recipe))
    counts = {each for each, value in options.items() if isinstance(value, str) and COUNTED in notes_of(hints[each])}
    options = {each: parse_count(value) if each in counts else value for each, value in options.items()}
    try:
        changed = dataclasses.replace(giving_way(recipe, options)[0], **options)
    except TypeError as problem:  # a value that cannot be compared with a number
        given = ", ".join(f"{each}={value!r}" for each, value in options.items())
        raise RecipeError(f"{called} does not take {given}: {problem}") from None
    require_one_side(recipe, options)
    return changed


def with_own_names(options: Mapping[str, Any], fields: Collection[str]) -> dict[str, Any]:
    """Returns options in which data has the recipe's own name for it: `data`, or `dataset_id` of texts and chats.

    Args:
        options: Values by name.
        fields: Names of the recipe's options.

    Raises:
        RecipeError: The data is given under both names.
    """
    own = next((name for name in NAMES_OF_DATA if name in fields), None)
    other = next((name for name in NAMES_OF_DATA if name in options and name not in fields), None)
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
    for field in ("dataset_id", "validation_id"):
        name = getattr(recipe, field, None)
        if not name or name == STANDARD_LIBRARY:
            continue
        try:
            require_named(name)
        except DataError:
            absent[option(field)] = name
    return absent


def set_by_recipe(recipe: Recipe, message: str, given: Collection[str], *, name: str) -> str:
    """Returns a clause on what a refusal names besides the user's options; empty if there is nothing.

    Options that have the default of their class are left out.

    Args:
        recipe: Recipe as it was before the user's options.
        message: The refusal.
        given: Options that the user gave, by field.
        name: Name of the recipe.
    """
    in_message = {flag.replace("-", "_") for flag in re.findall(r"--([a-z][a-z0-9-]*)", message)}
    defaults = {field.name: field.default for field in dataclasses.fields(recipe) if field.name in in_message}
    own = [each for each in defaults if each not in given and getattr(recipe, each) != defaults[each]]
    if not own or defaults.keys().isdisjoint(given):
        return ""
    return f" ({_settings(recipe, own)} {'is' if len(own) == 1 else 'are'} set by {name})"


def option(field: str) -> str:
    """Returns the command line's name of a field."""
    return f"--{field.replace('_', '-')}"


def _settings(recipe: Recipe, fields: Sequence[str]) -> str:
    """Returns options with their values, like "--width 128, --layers 4 and --heads 4"."""
    values = {name: getattr(recipe, name) for name in fields}
    words = [f"{option(name)} {f'{value:,}' if isinstance(value, int) else value}" for name, value in values.items()]
    return " and ".join([part for part in (", ".join(words[:-1]), words[-1]) if part])
