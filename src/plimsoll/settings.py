"""The published guide's table of settings by hardware, as plans found: one recipe, the guide's machines.

Part of the joint. The guide changes batch size and precision with the machine; here the recipe stays what it is, and a
bigger machine gives a faster plan of it, not another result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll.api import train
from plimsoll.errors import PlimsollError
from plimsoll.planner.host import margin_bytes
from plimsoll.recipes.base import Recipe
from plimsoll.types import Planned
from plimsoll.units import GIB

Say = Callable[[str], None]

MACHINES: tuple[tuple[str, str, int | None], ...] = (
    # name, chip, memory in bytes; None where the chip says it
    ("8 GiB, CPU", "cpu", 8 * GIB),
    ("12 GiB, CPU", "cpu", 12 * GIB),
    ("32 GiB, CPU", "cpu", 32 * GIB),
    ("tpu-v5e-8", "tpu-v5e-8", None),
)


@dataclass(frozen=True)
class Setting:
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


def settings(
    recipe: Recipe, *, name: str, numerics: str, pins: Mapping[str, Any], say: Say = lambda text: None
) -> list[Setting]:
    """A plan for each of the guide's machines. CPU step times are by the rates of this one."""
    found = []
    for machine, chip, memory in MACHINES:
        say(f"planning for {machine}")
        budget = None if memory is None else memory - margin_bytes(memory)
        try:
            planned = train.plan(recipe, name=name, memory=budget, chip=chip, numerics=numerics, pins=pins, say=say)
            found.append(Setting(machine, planned.ledger.budget_bytes, planned))
        except PlimsollError as problem:
            found.append(Setting(machine, budget, None, str(problem).splitlines()[0]))
    return found
