"""Plans of one recipe for several chips: `plimsoll plan --compare`.

All plans have the recipe's effective batch size. They differ in step time and in the memory that stays free. Costs
follow from prices that the user gives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from plimsoll.api.messages import Say, quiet
from plimsoll.api.planning.find import find_plan
from plimsoll.api.planning.place import place_of
from plimsoll.api.planning.question import Question
from plimsoll.errors import BudgetError, PlimsollError, RecipeError
from plimsoll.planner import chips
from plimsoll.report.compared import ComparedChip


def compare(
    question: Question, names: Sequence[str], prices: Mapping[str, float], say: Say = quiet
) -> list[ComparedChip]:
    """Returns a table row for each chip, with its plan or the reason why there is none.

    Args:
        question: The user's planning request. Its chip is replaced.
        names: Names of chips.
        prices: Prices per hour, by the name of the chip.
        say: Function that is called with progress messages.

    Raises:
        RecipeError: A name is not in the list of chips. Nothing is planned then.
    """
    platforms = {name: chips.chip(name).platform for name in names}
    rows: list[ComparedChip] = []
    for name, platform in platforms.items():
        say(f"planning for {name}")
        host_memory = None if platform == "cpu" else question.host_memory
        row = row_of(replace(question, chip=name, host_memory=host_memory), say)
        rows.append(replace(row, price_per_hour=prices.get(name)))
    return rows


def row_of(question: Question, say: Say) -> ComparedChip:
    """Returns the table row of the requested chip, with its plan or the reason why there is none."""
    assert question.chip is not None
    row = ComparedChip(chip=question.chip, rate_unit=question.recipe.spec.rate_unit)
    try:
        return replace(row, planned=find_plan(question, place_of(question, say), None, say))
    except PlimsollError as refusal:
        floor = refusal.floor_bytes if isinstance(refusal, BudgetError) else None
        return replace(row, why_not=str(refusal).splitlines()[0], floor_bytes=floor)


def chips_named(text: str) -> list[str]:
    """Returns the names of chips in text like `h200,a100-40`. Raises RecipeError for no name, or a name twice."""
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    twice = sorted({name for name in names if names.count(name) > 1})
    if not names or twice:
        what = f"names {', '.join(twice)} twice" if twice else "names no chip"
        raise RecipeError(f"--compare {text} {what}: give it chips with commas between them, like h200,a100-40,rtx4090")
    return names


def prices_named(text: str | None, names: Sequence[str]) -> dict[str, float]:
    """Returns prices per hour by chip, from text like `h200=3.5`. Raises RecipeError for a chip not in `names`."""
    prices: dict[str, float] = {}
    for part in text.split(",") if text else ():
        chip, equals, value = (word.strip() for word in part.partition("="))
        try:
            price = float(value)
        except ValueError:
            price = math.nan
        if not equals or not 0 <= price < math.inf:
            raise RecipeError(f"--price {text}: {part.strip()!r} is no price, write them like h200=3.5,rtx4090=0.4")
        if chip.lower() not in names:
            raise RecipeError(f"--price names {chip!r}, which --compare does not: it compares {', '.join(names)}")
        prices[chip.lower()] = price
    return prices
