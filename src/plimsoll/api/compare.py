"""One recipe planned for several chips (`--compare`), or for the machines of the published guide (`--settings`).

The recipe stays what it is, with its effective batch: what differs is how fast a step is, and what is left of the
memory. Prices are the user's own: nobody else's are known here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from plimsoll.api.plan import plan
from plimsoll.errors import PlimsollError, RecipeError
from plimsoll.planned import Planned
from plimsoll.planner import chips
from plimsoll.planner.host import margin_bytes
from plimsoll.recipes.base import Recipe
from plimsoll.report.compared import ComparedChip
from plimsoll.units import GIB

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
        here = target.platform == "cpu"
        host = None if here else host_memory
        planned, why_not, floor_bytes = _planned(recipe, chip=chip, host_memory=host, say=say, **options)
        row = ComparedChip(
            chip=chip,
            rate_unit=recipe.rate_unit,
            planned=planned,
            why_not=why_not,
            floor_bytes=floor_bytes,
            memory_bytes=None if here else target.memory_bytes,
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


MACHINES: tuple[tuple[str, str, int | None], ...] = (
    # name, chip, memory in bytes; None where the chip says it
    ("8 GiB, CPU", "cpu", 8 * GIB),
    ("12 GiB, CPU", "cpu", 12 * GIB),
    ("32 GiB, CPU", "cpu", 32 * GIB),
    ("tpu-v5e-8", "tpu-v5e-8", None),
)


class Setting(NamedTuple):
    """A machine and its plan, or why there is none."""

    machine: str
    budget_bytes: int | None
    """Its memory less what is left to others; None where there is no plan and the chip would have said it."""
    planned: Planned | None
    why_not: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "machine": self.machine,
            "budget_bytes": self.budget_bytes,
            "plan": self.planned.to_dict() if self.planned is not None else None,
            "why_not": self.why_not or None,
        }


def settings(recipe: Recipe, *, say: Say, **options: Any) -> list[Setting]:
    """Plans for each of the guide's machines, with these options of `plan`. CPU step times are by the rates of this
    one."""
    rows: list[Setting] = []
    for machine, chip, memory in MACHINES:
        say(f"planning for {machine}")
        budget = None if memory is None else memory - margin_bytes(memory)
        planned, why_not, _ = _planned(recipe, **options | {"memory": budget, "chip": chip, "say": say})
        budget = budget if planned is None else planned.ledger.budget_bytes
        rows.append(Setting(machine, budget, planned, why_not))
    return rows
