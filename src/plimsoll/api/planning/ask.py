"""Answers a planning request: the fastest plan that fits, the smallest, or that of the largest value of an option."""

from __future__ import annotations

from plimsoll.api.messages import Say, quiet
from plimsoll.api.planning.find import find_plan, find_smallest
from plimsoll.api.planning.largest import find_largest
from plimsoll.api.planning.place import place_of
from plimsoll.api.planning.question import Question
from plimsoll.errors import RecipeError
from plimsoll.planned import Planned
from plimsoll.recipes.flat import unresolvable_data


def ask(question: Question, say: Say = quiet, *, smallest: bool = False, largest: str | None = None) -> Planned:
    """Returns the requested plan, without reading any data.

    Args:
        question: The user's planning request.
        say: Function that is called with progress messages.
        smallest: Whether to find the plan that needs the fewest bytes, instead of the fastest that fits.
        largest: Name of an option, to find the plan of its largest value that fits.

    Raises:
        RecipeError: Two kinds of plan are requested at once, or options are invalid.
        BudgetError: No plan fits.
    """
    if largest is not None and (smallest or question.measure):
        raise RecipeError(
            f"--largest {largest} compares the smallest plans of values, and times no plan: leave out --floor and"
            " --measure"
        )
    place = place_of(question, say)
    for flag, problem in unresolvable_data(question.recipe).items():
        say(f"{flag}: {problem} Planning does not read the data, but training will refuse to start")
    if largest is not None:
        return find_largest(question, place, largest, say)
    find = find_smallest if smallest else find_plan
    return find(question, place, None, say)
