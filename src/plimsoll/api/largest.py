"""The largest value of an option that fits a budget: `plimsoll plan --largest` and `plimsoll.plan(..., largest=...)`.

A value fits where the smallest plan of its recipe does. Most values are planned with the levers of the smallest plan
of a value near to them, which is one compile each. Bytes grow almost linearly with the value, so a line through what is
known leads to the limit. The end is held for itself: the value is compiled and rehearsed, and the next one does not fit
whatever the levers are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from plimsoll.api.option_values import Steps
from plimsoll.errors import BudgetError, RecipeError
from plimsoll.levers.registry import LEVERS
from plimsoll.planned import Largest, Planned, TriedValue
from plimsoll.recipes.recipe import Recipe
from plimsoll.units import MIB, format_budget, format_bytes, format_count

Say = Callable[[str], None]
PlanOf = Callable[..., Planned]
"""`api.plan.plan` with everything but recipe, pins, time and `smallest`."""

WITHIN = {"cpu": 240.0, "cuda": 420.0, "tpu": 900.0}
"""Seconds that finding a value may take, by platform: about six plans."""
LEAST_SECONDS = 5.0
"""Seconds that a plan is given at least."""
FURTHEST = 16
"""Times a value that the next one may be, where nothing is known beyond it."""
NEAR = 3
"""Times a value that another one may be whose levers are taken over."""
SAME_SIDE = 3
"""Values on one side of the limit in a row after which the middle is taken, and no line trusted."""


def find_largest(
    recipe: Recipe,
    steps: Steps,
    plan_of: PlanOf,
    *,
    pins: Mapping[str, Any],
    budget_bytes: int,
    within: float,
    say: Say = lambda text: None,
    clock: Callable[[], float] = time.monotonic,
) -> Planned:
    """Returns the plan of the largest value that fits, with `largest_found` saying how it was found.

    Args:
        recipe: The recipe; the option's own value in it is where the search begins.
        steps: Values to try.
        plan_of: Plans a recipe.
        pins: Levers that the user has set.
        budget_bytes: Budget of one device.
        within: Seconds after which the largest value that is confirmed is taken, or the first one that is.
        say: Called with what is being done.
        clock: Clock in seconds.

    Raises:
        BudgetError: Not even the least value fits.
        RecipeError: The recipe cannot have another value.
    """
    if steps.option == "batch_size" and "micro_batch" in pins:
        raise RecipeError(
            "--largest batch-size looks for the largest batch that goes through at once, and --micro-batch"
            f" {pins['micro_batch']} splits it: leave --micro-batch out"
        )
    return _Finder(recipe, steps, plan_of, dict(pins), budget_bytes, say, clock, clock() + within).run()


@dataclass(frozen=True)
class Point:
    """Facts that are known of a value."""

    needed: float
    """Smallest budget that it fits in; infinite where the recipe refuses it, or nothing compiles."""
    fits: bool
    settled: bool
    """Whether all levers were free, and the time was enough: no other plan of it is smaller."""
    why: str = ""
    """The recipe's refusal."""
    planned: Planned | None = None


@dataclass
class _Finder:
    recipe: Recipe
    steps: Steps
    plan_of: PlanOf
    pins: dict[str, Any]
    budget: int
    say: Say
    clock: Callable[[], float]
    deadline: float
    levers: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Levers of the smallest plans that were found with all of them free, by the number of the value."""
    points: dict[int, Point] = field(default_factory=dict)
    tried: list[TriedValue] = field(default_factory=list)

    def run(self) -> Planned:
        self._ask(self._first())
        while True:
            below, above = self._between()
            if self._late() and below >= 0:
                return self._answer(below)
            if above - below > 1:
                self._ask(self._next(below, above))
            elif above > self.steps.last or self.points[above].settled:
                return self._answer(below)
            else:
                self._ask(above, free=True)

    # Which value is next.

    def _first(self) -> int:
        """Returns where the search begins: at the recipe's own value."""
        return min(self.steps.number(self.recipe.options[self.steps.option]), self.steps.last)

    def _between(self) -> tuple[int, int]:
        """Returns the largest number that fits, -1 if none, and the smallest that does not, beyond the last if none."""
        below = max((number for number, point in self.points.items() if point.fits), default=-1)
        others = (number for number, point in self.points.items() if not point.fits and number > below)
        return below, min(others, default=self.steps.last + 1)

    def _next(self, below: int, above: int) -> int:
        """Returns the number to ask about next, between the largest that fits and the smallest that does not."""
        known = {number: point.needed for number, point in self.points.items() if point.needed < math.inf}
        sides = [each.fits for each in self.tried[-SAME_SIDE:]]
        is_stuck = len(sides) == SAME_SIDE and len(set(sides)) == 1
        if is_stuck and below in self.points and above in self.points:
            return (below + above) // 2

        value = self.steps.value
        if len(known) > 1:
            # By a line through the two values whose bytes are nearest to the budget.
            first, second = sorted(known, key=lambda number: (abs(known[number] - self.budget), number))[:2]
            slope = (known[second] - known[first]) / (value(second) - value(first))
            limit = value(first) + (self.budget - known[first]) / slope if slope > 0 else FURTHEST * value(first)
        else:
            limit = value(below) * 2 if below >= 0 else value(above) / 2
        number = self.steps.number(max(0, min(limit, FURTHEST * value(max(self.points)))))
        if above in self.points and number >= above:
            return (below + above) // 2  # what the recipe refuses has no bytes
        return max(below + 1, min(number, above - 1))

    def _pins(self, recipe: Recipe) -> dict[str, Any]:
        """Returns the user's pins, and that a batch goes through at once where the largest batch is looked for."""
        return self.pins | ({"micro_batch": recipe.effective_batch} if self.steps.option == "batch_size" else {})

    # What is asked.

    def _late(self) -> bool:
        return self.clock() >= self.deadline

    def _recipe(self, number: int) -> Recipe:
        changed = self.recipe.replace(**{self.steps.option: self.steps.value(number)})
        _ = changed.hints  # sizes that contradict one another
        return changed

    def _ask(self, number: int, *, free: bool = False) -> None:
        value = self.steps.value(number)
        free = free or self._nearest(number) is None
        self.say(f"planning for {self._named(value)}" + ("" if free else ", with the levers of the smallest plan"))
        point = self._planned(number, free=free)
        if free and point.fits:  # other levers: what did not fit with those before may fit now
            self.points = {each: found for each, found in self.points.items() if found.fits or found.settled}
        self.points[number] = point
        needed = None if point.needed == math.inf else int(point.needed)
        self.tried.append(TriedValue(value=value, needed_bytes=needed, fits=point.fits, free=free, refused=point.why))

    def _planned(self, number: int, *, free: bool) -> Point:
        try:
            recipe = self._recipe(number)
        except RecipeError as refusal:
            if not self.points:
                raise
            return Point(math.inf, False, settled=True, why=str(refusal))
        nearest = None if free else self._nearest(number)
        levers = {} if nearest is None else self.levers[nearest]
        pins = levers | self._pins(recipe)
        left = max(LEAST_SECONDS, self.deadline - self.clock())
        started = self.clock()
        try:
            planned = self.plan_of(recipe, pins=pins, smallest=True, within=left)
        except BudgetError as refusal:  # nothing compiles
            return Point(math.inf, False, settled=free, why=str(refusal))
        if free:
            levers = {name: value for name, value in planned.plan.levers.items() if LEVERS[name].compiled}
            self.levers[number] = levers
        in_time = self.clock() - started < left
        ledger = planned.ledger
        return Point(ledger.needed_bytes, ledger.fits, settled=free and in_time, planned=planned)

    def _nearest(self, number: int) -> int | None:
        """Returns the nearest value that was planned with all levers free; None where none is near."""
        value = self.steps.value(number)
        factors = {each: abs(math.log(value / self.steps.value(each))) for each in self.levers}
        nearest = min(factors, key=factors.__getitem__, default=None)
        return None if nearest is None or factors[nearest] > math.log(NEAR) else nearest

    # What is told.

    def _named(self, value: int) -> str:
        shown = format_count(value) if self.steps.step == 0 else f"{value:,}"
        return f"--{self.steps.option.replace('_', '-')} {shown}"

    def _answer(self, below: int) -> Planned:
        if below < 0:
            self._refuse()
        point, beyond = self.points[below], self.points.get(below + 1)
        assert point.planned is not None
        value = self.steps.value(below)
        next_value = self.steps.value(below + 1) if below < self.steps.last else None
        planned = replace(point.planned, plan=replace(point.planned.plan, pinned=tuple(sorted(self.pins))))
        bounded_by, reason = self._bounded(planned, beyond, next_value)
        if bounded_by == "recipe" and len(self.tried) > 1 and sum(not each.refused for each in self.tried) == 1:
            assert beyond is not None
            raise RecipeError(beyond.why)  # every other value: the option contradicts another one
        if bounded_by == "option" and not self._late():
            planned = self._fastest(below) or planned
        largest = Largest(
            option=self.steps.option.replace("_", "-"),
            value=value,
            next_value=next_value,
            next_needed_bytes=None if beyond is None or beyond.needed == math.inf else int(beyond.needed),
            bounded_by=bounded_by,
            reason=f"{self._named(value)}: {reason}",
            tried=tuple(self.tried),
        )
        return replace(planned, largest_found=largest)

    def _fastest(self, number: int) -> Planned | None:
        """Returns the fastest plan of a value that is not bounded by bytes; None where the time was not enough."""
        recipe, left = self._recipe(number), max(LEAST_SECONDS, self.deadline - self.clock())
        try:
            return self.plan_of(recipe, pins=self._pins(recipe), within=left)
        except BudgetError:
            return None

    def _bounded(self, planned: Planned, beyond: Point | None, next_value: int | None) -> tuple[Any, str]:
        """Returns what keeps the value from being larger, in a word and in a clause."""
        budget, needed = _in_mib(self.budget), _in_mib(planned.ledger.needed_bytes)
        if next_value is None:
            return "option", f"{self.steps.why_most}, and not the bytes: its smallest plan needs {needed} of {budget}"
        if beyond is not None and beyond.settled and beyond.why:
            return "recipe", f"beyond it the recipe refuses, {beyond.why}"
        at_once = " at once" if self.steps.option == "batch_size" else ""
        if beyond is not None and beyond.settled:
            more = _in_mib(beyond.needed)
            return "bytes", f"{needed} of {budget} in its smallest plan; {next_value:,}{at_once} would need {more}"
        found = "was not tried" if beyond is None else "was only tried with the same levers"
        return "time", f"it fits, {needed} of {budget}, and within the time limit of planning {next_value:,} {found}"

    def _refuse(self) -> None:
        """Raises the refusal of the least value, which does not fit."""
        least = self.points[0]
        floor = None if least.needed == math.inf else int(least.needed)
        why = least.why or f"its smallest plan needs {format_budget(int(least.needed))}"
        raise BudgetError(
            f"no --{self.steps.option.replace('_', '-')} fits in {format_bytes(self.budget)}: the least that is tried"
            f" is {self.steps.value(0):,}, and {why}. Give a larger --memory, or plan for it alone to see"
            " what would help",
            budget_bytes=self.budget,
            floor_bytes=floor,
        )


def _in_mib(size: float) -> str:
    """Returns bytes so exactly that two values one step apart differ."""
    return f"{size / MIB:,.1f} MiB"
