"""The largest value of an option that fits a budget: `plimsoll plan --largest` and `plimsoll.plan(..., largest=...)`.

A value fits if its smallest plan fits. Memory grows almost linearly with the value. So the next value to try is where a
line through two known points meets the budget; every third time it is halfway between the bounds. Most values reuse the
levers (memory-saving options) of a nearby value's smallest plan, which takes one compile. The first value above the
answer is planned with all levers free, to show that no levers make it fit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NoReturn

from plimsoll.api.messages import Say, quiet
from plimsoll.api.planning.find import find_plan, find_smallest, seconds_for
from plimsoll.api.planning.option_values import TWO_DIGITS, Values, values_of
from plimsoll.api.planning.place import Place
from plimsoll.api.planning.question import Question
from plimsoll.errors import BudgetError, RecipeError
from plimsoll.levers.registry import LEVERS
from plimsoll.planned import Largest, Planned, TriedValue
from plimsoll.report.tables import units_per_second
from plimsoll.units import MIB, format_budget, format_bytes, format_count

WITHIN = {"cpu": 240.0, "cuda": 420.0, "tpu": 900.0}
"""Default time limit of the search for a value in seconds, by platform: enough for about six plans."""
LEAST_SECONDS = 5.0
"""Shortest time limit of one plan, in seconds."""
FURTHEST = 16
"""Largest ratio of the next value to try to the largest value planned so far."""
NEAR = 3
"""Largest ratio of two values that may be planned with the same memory-saving options."""


def find_largest(
    question: Question, place: Place, option: str, say: Say = quiet, *, clock: Callable[[], float] = time.monotonic
) -> Planned:
    """Returns the plan of the largest value that fits. Its `largest_found` describes the search.

    Args:
        question: The user's planning request. The search begins at the recipe's own value.
        place: Place of the plan: chip, devices and budget.
        option: Name of the option to maximise, with hyphens or underscores.
        say: Function that is called with progress messages.
        clock: Clock in seconds.

    Raises:
        BudgetError: Not even the smallest value fits.
        RecipeError: The recipe has no such option, or refuses every other value of it.
    """
    values = values_of(question.recipe, option, devices=place.chip.devices)
    micro_batch = question.pins.get("micro_batch")
    if values.option == "batch_size" and micro_batch is not None:
        raise RecipeError(
            "--largest batch-size looks for the largest batch that goes through at once, and --micro-batch"
            f" {micro_batch} splits it: leave --micro-batch out"
        )
    search = _Search(question, place, values, say, clock, clock() + seconds_for(question, place, WITHIN))

    search.plan(values.number(question.recipe.options[values.option]))
    while True:
        below, above = search.bounds()
        beyond = search.trials.get(above)
        if search.is_late and below >= 0:
            break
        if above - below > 1:
            search.plan(search.guess(below, above))
        elif beyond is not None and not beyond.free:
            search.plan(above, free=True)
        else:
            break
    if below < 0:
        _refuse(search)
    return _answer(search, below)


@dataclass
class _Search:
    """State of the search for the largest value of an option. A `number` is an index in `values.rising`."""

    question: Question
    place: Place
    values: Values
    say: Say
    clock: Callable[[], float]
    deadline: float
    trials: dict[int, TriedValue] = field(default_factory=dict)
    plans: dict[int, Planned] = field(default_factory=dict)
    """Plan with the fewest bytes for each tried value, by the value's index in `values.rising`."""
    history: list[TriedValue] = field(default_factory=list)
    """Results of all tried values, the earliest first."""
    levers: dict[str, Any] = field(default_factory=dict)
    """Memory-saving options ("levers") of the latest plan for which the planner chose all of them."""
    levers_of: int = 0
    """Value of the maximised option in the plan that `levers` is from; 0 before there is one."""

    @property
    def is_late(self) -> bool:
        return self.clock() >= self.deadline

    @property
    def seconds_left(self) -> float:
        return max(LEAST_SECONDS, self.deadline - self.clock())

    def bounds(self) -> tuple[int, int]:
        """Returns the indices of two values: the largest that fits, and the smallest tried one above it.

        The first is -1 if no value fits. The second is the count of values if no larger one was tried.
        """
        below = max((number for number, trial in self.trials.items() if trial.fits), default=-1)
        above = min((number for number in self.trials if number > below), default=len(self.values.rising))
        return below, above

    def guess(self, below: int, above: int) -> int:
        """Returns the index of the value to plan next, between the indices `below` and `above`."""
        # With an upper bound, choose the middle every third time, and always if that bound's bytes are unknown.
        beyond = self.trials.get(above)
        is_third = len(self.history) % 3 == 0
        if beyond is not None and (is_third or beyond.needed_bytes is None):
            return (below + above) // 2

        # Else draw a line through the two values with bytes nearest to the budget. Take its value at the budget.
        budget = self.place.budget_bytes
        sizes = {trial.value: trial.needed_bytes for trial in self.trials.values() if trial.needed_bytes is not None}
        first, *others = sorted(sizes, key=lambda value: abs(sizes[value] - budget))
        furthest = FURTHEST * max(sizes)
        target = furthest
        if not others:
            target = 2 * first if below >= 0 else first / 2
        elif (slope := (sizes[others[0]] - sizes[first]) / (others[0] - first)) > 0:
            target = first + (budget - sizes[first]) / slope
        number = self.values.number(min(target, furthest))
        return max(below + 1, min(number, above - 1))

    def plan(self, number: int, *, free: bool = False) -> None:
        """Plans the value with index `number`, and records the result. Reuses levers of a near value, unless `free`."""
        value = self.values.rising[number]
        is_near = self.levers_of and abs(math.log(value / self.levers_of)) <= math.log(NEAR)
        levers = self.levers if is_near and not free else {}
        with_levers = ", with the levers of the smallest plan" if levers else ""
        self.say(f"planning for {self.named(number)}{with_levers}")
        trial = self.trial(number, levers)
        if trial.free and trial.fits:  # with the new levers, values that did not fit with earlier levers may fit
            self.trials = {at: other for at, other in self.trials.items() if other.fits or other.free}
        self.trials[number] = trial
        self.history.append(trial)

    def trial(self, number: int, levers: dict[str, Any]) -> TriedValue:
        """Returns the result of planning value `number`. If `levers` is empty, the planner chooses all of them."""
        value = self.values.rising[number]
        try:
            question = self.question_of(number)
            question = replace(question, pins={**levers, **question.pins}, within=self.seconds_left)
            planned = find_smallest(question, self.place, None, self.say)
        except RecipeError as refusal:
            if not self.history:
                raise
            return TriedValue(value=value, free=not levers, refused=str(refusal))
        except BudgetError as refusal:  # no plan compiles
            return TriedValue(value=value, free=not levers, refused=str(refusal))
        self.plans[number] = planned
        if not levers:
            self.levers = {name: value for name, value in planned.plan.levers.items() if LEVERS[name].compiled}
            self.levers_of = value
        return TriedValue(
            value=value,
            needed_bytes=planned.ledger.needed_bytes,
            fits=planned.ledger.fits,
            free=not levers and not self.is_late,
            step_seconds=planned.step_seconds,
            per_second=units_per_second(planned),
        )

    def question_of(self, number: int) -> Question:
        """Returns the request for the value with index `number`. Raises RecipeError if the recipe rejects the value."""
        recipe = self.question.recipe.replace(**{self.values.option: self.values.rising[number]})
        _ = recipe.hints  # raises RecipeError for sizes that contradict one another
        pins = dict(self.question.pins)
        if self.values.option == "batch_size":  # the whole batch is one micro-batch
            pins["micro_batch"] = recipe.effective_batch
        return replace(self.question, recipe=recipe, pins=pins)

    def fastest(self, number: int) -> Planned:
        """Returns the fastest plan for the value with index `number`, or the smallest plan if there is no time left."""
        if self.is_late:
            return self.plans[number]
        try:
            return find_plan(replace(self.question_of(number), within=self.seconds_left), self.place, None, self.say)
        except BudgetError:
            return self.plans[number]

    def named(self, number: int) -> str:
        """Returns the option and the value with index `number` as text, like `--seq-len 1,024`."""
        value = self.values.rising[number]
        shown = format_count(value) if self.values.rising is TWO_DIGITS else f"{value:,}"
        return f"--{self.values.flag} {shown}"


def _answer(search: _Search, number: int) -> Planned:
    """Returns the plan of the largest value, with the reason why no larger value was found."""
    values, beyond = search.values, search.trials.get(number + 1)
    bounded_by, reason = _bound(search, number)

    # If the recipe refuses every other value, the option contradicts another option: raise that error.
    refusals = [trial.refused for trial in search.history if trial.refused]
    if bounded_by == "recipe" and len(search.history) - len(refusals) == 1:
        raise RecipeError(refusals[-1])

    # At the option's maximum there is memory to spare, so return the fastest plan instead of the smallest.
    planned = search.fastest(number) if bounded_by == "option" else search.plans[number]
    largest = Largest(
        option=values.flag,
        value=values.rising[number],
        next_value=None if bounded_by == "option" else values.rising[number + 1],
        next_needed_bytes=beyond and beyond.needed_bytes,
        bounded_by=bounded_by,
        reason=f"{search.named(number)}: {reason}",
        tried=tuple(search.history),
    )
    plan = replace(planned.plan, pinned=tuple(sorted(search.question.pins)))
    return replace(planned, plan=plan, largest_found=largest)


def _bound(search: _Search, number: int) -> tuple[Literal["bytes", "option", "recipe", "time"], str]:
    """Returns the reason why no larger value was found, as a word and as a clause for messages."""
    values, beyond = search.values, search.trials.get(number + 1)
    needed = f"{_in_mib(search.trials[number].needed_bytes)} of {_in_mib(search.place.budget_bytes)}"
    if number + 1 == len(values.rising):
        return "option", f"{values.why_most}, and not the bytes: the smallest plan needs {needed}"
    next_value = f"{values.rising[number + 1]:,}"
    if beyond is None or not beyond.free:
        found = "was not tried" if beyond is None else "was only tried with the same levers"
        return "time", f"its smallest plan needs {needed}; {next_value} {found} within the time limit of planning"
    if beyond.refused:
        return "recipe", f"{next_value} is refused: {beyond.refused}"
    at_once = " at once" if values.option == "batch_size" else ""
    return "bytes", f"its smallest plan needs {needed}; {next_value}{at_once} would need {_in_mib(beyond.needed_bytes)}"


def _refuse(search: _Search) -> NoReturn:
    """Raises BudgetError, because not even the smallest value fits."""
    least = search.trials[0]
    why = least.refused
    if least.needed_bytes is not None:
        verb = "needs" if search.plans[0].ledger.source == "compiled" else "is estimated to need"
        why = f"its smallest plan {verb} {format_budget(least.needed_bytes)}"
    raise BudgetError(
        f"no --{search.values.flag} fits in {format_bytes(search.place.budget_bytes)}: the least that is tried is"
        f" {least.value:,}, and {why}. Give a larger --memory, or plan without --largest to see what would help",
        budget_bytes=search.place.budget_bytes,
        floor_bytes=least.needed_bytes,
    )


def _in_mib(size: int | None) -> str:
    """Returns bytes as text in MiB, exact enough to differ between neighbouring values."""
    return "an unknown number of MiB" if size is None else f"{size / MIB:,.1f} MiB"
