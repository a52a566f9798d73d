"""One recipe planned for several chips: `plimsoll plan --compare`.

The recipe stays what it is, with its effective batch: what differs is how fast a step is, and what is left of the
memory. Prices are the user's own: nobody else's are known here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from plimsoll.api.plan import plan
from plimsoll.errors import PlimsollError, RecipeError
from plimsoll.planned import Planned
from plimsoll.planner import chips
from plimsoll.recipes.recipe import Recipe
from plimsoll.report.compared import ComparedChip

Say = Callable[[str], None]


def compared(
    recipe: Recipe,
    names: Sequence[str],
    *,
    prices: Mapping[str, float],
    host_memory: str | None = None,
    say: Say,
    **options: Any,
) -> list[ComparedChip]:
    """Plans for the chips in `names`, in their order. A name that is no chip is refused before anything is planned.

    Args:
        recipe: The recipe.
        names: Names of chips.
        prices: Prices per hour, by the name of the chip.
        host_memory: Budget of a host beside its accelerators; this machine has none if it is the chip.
        say: Called with a message before each chip.
        options: Of `plan`.
    """
    rows: list[ComparedChip] = []
    for chip, target in {chip: chips.chip(chip) for chip in names}.items():
        say(f"planning for {chip}")
        host = None if target.platform == "cpu" else host_memory
        planned, why_not, floor_bytes = _planned(recipe, chip=chip, host_memory=host, say=say, **options)
        row = ComparedChip(
            chip=chip,
            rate_unit=recipe.spec.rate_unit,
            planned=planned,
            why_not=why_not,
            floor_bytes=floor_bytes,
            price_per_hour=prices.get(chip),
        )
        rows.append(row)
    return rows


def _planned(recipe: Recipe, **options: Any) -> tuple[Planned | None, str, int | None]:
    """Returns the plan; or None, why there is none in a line, and the smallest peak that was found."""
    try:
        return plan(recipe, **options), "", None
    except PlimsollError as refusal:
        return None, str(refusal).splitlines()[0], getattr(refusal, "floor_bytes", None)


def chips_named(text: str) -> list[str]:
    """Returns the chips in text like `h200,a100-40`: at least one, none twice."""
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    twice = sorted({name for name in names if names.count(name) > 1})
    if not names or twice:
        what = f"names {', '.join(twice)} twice" if twice else "names no chip"
        raise RecipeError(f"--compare {text} {what}: give it chips with commas between them, like h200,a100-40,rtx4090")
    return names


def prices_named(text: str | None, names: Sequence[str]) -> dict[str, float]:
    """Returns prices per hour from text like `h200=3.5,rtx4090=0.4`, of chips that are compared."""
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
