"""The largest value of an option that fits a budget: `plimsoll plan --largest` and `plimsoll.plan(..., largest=...)`.

A value fits where its smallest plan does. Bytes grow almost linearly with the value: so the next one to try is read off
a line through two that are known, and where that comes no nearer, what is left is halved. Most values are planned with
the levers of the smallest plan of a value near to them, which is one compile each. The end is planned with all levers
free: the next value does not fit whatever the levers are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, NoReturn

from plimsoll.api.messages import Say, quiet
from plimsoll.api.planning.find import find_plan, find_smallest, seconds_for
from plimsoll.api.planning.option_values import Values, values_of
from plimsoll.api.planning.place import Place
from plimsoll.api.planning.question import Question
from plimsoll.errors import BudgetError, RecipeError
from plimsoll.levers.registry import LEVERS
from plimsoll.planned import Largest, Planned, TriedValue
from plimsoll.report.tables import units_per_second
from plimsoll.units import MIB, format_budget, format_bytes, format_count

WITHIN = {"cpu": 240.0, "cuda": 420.0, "tpu": 900.0}
"""Seconds that finding a value may take, by platform: about six plans."""
LEAST_SECONDS = 5.0
"""Seconds that a plan is given at least."""
SAME_SIDE = 3
"""Values on one side of the limit in a row after which what is left is halved, and no line trusted."""
FURTHEST = 16
"""Times a value that the next one may be, where nothing is known beyond it."""
NEAR = 3
"""Times a value that another one may be whose levers are taken over."""


def find_largest(
    question: Question, place: Place, option: str, say: Say = quiet, *, clock: Callable[[], float] = time.monotonic
) -> Planned:
    """Returns the plan of the largest value that fits, with `largest_found` saying how it was found.

    Args:
        question: What the user wants a plan for; the recipe's own value is where the search begins.
        place: Where the plan runs.
        option: Name of the option, with hyphens or underscores.
        say: Called with what is being done.
        clock: Clock in seconds.

    Raises:
        BudgetError: Not even the least value fits.
        RecipeError: The recipe has no such option, or cannot have another value of it.
    """
    values = values_of(question.recipe, option, devices=place.chip.devices)
    micro_batch = question.pins.get("micro_batch")
    if values.option == "batch_size" and micro_batch is not None:
        raise RecipeError(
            "--largest batch-size looks for the largest batch that goes through at once, and --micro-batch"
            f" {micro_batch} splits it: leave --micro-batch out"
        )
    deadline = clock() + seconds_for(question, place, WITHIN)
    search = _Search(question, place, values, say, clock, deadline)

    search.plan(min(values.number(question.recipe.options[values.option]), values.last))
    while True:
        below, above = search.bounds()
        if search.is_late and below >= 0:
            break
        if above - below > 1:
            search.plan(search.guess(below, above))
        elif above <= values.last and not search.trials[above].settled:
            search.plan(above, free=True)
        else:
            break
    if below < 0:
        _refuse(search)
    return _answer(search, below)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A value that was planned."""

    value: int
    free: bool
    """Whether all levers were free, and not those of the smallest plan of another value."""
    settled: bool = True
    """Whether no other plan of it is smaller: all levers were free, and the time was enough."""
    planned: Planned | None = None
    """Its smallest plan; None where the recipe refuses it, or nothing compiles."""
    refusal: str = ""

    @property
    def fits(self) -> bool:
        return self.planned is not None and self.planned.ledger.fits

    @property
    def needed_bytes(self) -> int | None:
        """The smallest budget that it fits in."""
        return None if self.planned is None else self.planned.ledger.needed_bytes

    @property
    def in_words(self) -> TriedValue:
        return TriedValue(
            value=self.value,
            needed_bytes=self.needed_bytes,
            fits=self.fits,
            free=self.free,
            refused=self.refusal,
            step_seconds=None if self.planned is None else self.planned.step_seconds,
            per_second=None if self.planned is None else units_per_second(self.planned),
        )


@dataclass
class _Search:
    """The values that were planned so far, by their numbers."""

    question: Question
    place: Place
    values: Values
    say: Say
    clock: Callable[[], float]
    deadline: float
    trials: dict[int, Trial] = field(default_factory=dict)
    levers: dict[int, dict[str, object]] = field(default_factory=dict)
    """Levers of the smallest plans that were found with all of them free."""
    history: list[Trial] = field(default_factory=list)
    """In the order in which they were tried."""

    @property
    def is_late(self) -> bool:
        return self.clock() >= self.deadline

    def bounds(self) -> tuple[int, int]:
        """Returns the largest number that fits, -1 if none, and the smallest that does not, beyond the last if none."""
        below = max((number for number, trial in self.trials.items() if trial.fits), default=-1)
        above = min((number for number in self.trials if number > below), default=self.values.last + 1)
        return below, above

    def guess(self, below: int, above: int) -> int:
        """Returns the number to plan next, between the largest that fits and the smallest that does not."""
        middle = (below + above) // 2
        sides = [trial.fits for trial in self.history[-SAME_SIDE:]]
        if len(sides) == SAME_SIDE and len({*sides}) == 1 and above in self.trials:
            return middle
        furthest = FURTHEST * self.values.value(max(self.trials))
        number = self.values.number(max(0, min(self._value_at_budget(below, above), furthest)))
        if above in self.trials and number >= above and self.trials[above].planned is None:
            return middle  # what is refused has no bytes
        return max(below + 1, min(number, above - 1))

    def _value_at_budget(self, below: int, above: int) -> float:
        """Returns the value that needs the budget, by a line through the two whose bytes are nearest to it."""
        value = self.values.value
        needed = {number: trial.needed_bytes for number, trial in self.trials.items() if trial.needed_bytes is not None}
        if len(needed) < 2:
            return value(below) * 2 if below >= 0 else value(above) / 2
        first, second = sorted(needed, key=lambda number: abs(needed[number] - self.place.budget_bytes))[:2]
        slope = (needed[second] - needed[first]) / (value(second) - value(first))
        if slope <= 0:
            return FURTHEST * value(first)
        return value(first) + (self.place.budget_bytes - needed[first]) / slope

    def plan(self, number: int, *, free: bool = False) -> None:
        """Plans a value, with the levers of the nearest one unless they are `free`."""
        levers = None if free else self._levers_near(number)
        with_levers = "" if levers is None else ", with the levers of the smallest plan"
        self.say(f"planning for {self.named(number)}{with_levers}")
        trial = self._trial(number, levers)
        if trial.free and trial.fits:  # other levers: what did not fit with those before may fit now
            self.trials = {at: other for at, other in self.trials.items() if other.fits or other.settled}
        self.trials[number] = trial
        self.history.append(trial)

    def _trial(self, number: int, levers: dict[str, object] | None) -> Trial:
        value, is_free = self.values.value(number), levers is None
        try:
            question = self.question_of(number)
        except RecipeError as refusal:
            if not self.trials:
                raise
            return Trial(value=value, free=is_free, refusal=str(refusal))
        started, seconds = self.clock(), self._seconds_left()
        question = replace(question, pins={**(levers or {}), **question.pins}, within=seconds)
        try:
            planned = find_smallest(question, self.place, None, self.say)
        except BudgetError as refusal:  # nothing compiles
            return Trial(value=value, free=is_free, settled=is_free, refusal=str(refusal))
        if is_free:
            chosen = planned.plan.levers.items()
            self.levers[number] = {name: value for name, value in chosen if LEVERS[name].compiled}
        in_time = self.clock() - started < seconds
        return Trial(value=value, free=is_free, settled=is_free and in_time, planned=planned)

    def question_of(self, number: int) -> Question:
        """Returns the question with that value. Raises RecipeError where the recipe cannot have it."""
        recipe = self.question.recipe.replace(**{self.values.option: self.values.value(number)})
        _ = recipe.hints  # sizes that contradict one another
        pins = dict(self.question.pins)
        if self.values.option == "batch_size":  # all of it at once
            pins["micro_batch"] = recipe.effective_batch
        return replace(self.question, recipe=recipe, pins=pins)

    def fastest(self, number: int) -> Planned | None:
        """Returns the fastest plan of a value; None where the time was not enough."""
        if self.is_late:
            return None
        question = replace(self.question_of(number), within=self._seconds_left())
        try:
            return find_plan(question, self.place, None, self.say)
        except BudgetError:
            return None

    def _seconds_left(self) -> float:
        return max(LEAST_SECONDS, self.deadline - self.clock())

    def _levers_near(self, number: int) -> dict[str, object] | None:
        """Returns the levers of the nearest value that was planned with all of them free; None where none is near."""
        value = self.values.value(number)
        factors = {other: abs(math.log(value / self.values.value(other))) for other in self.levers}
        near = {other: factor for other, factor in factors.items() if factor <= math.log(NEAR)}
        return self.levers[min(near, key=near.__getitem__)] if near else None

    def named(self, number: int) -> str:
        """Returns like `--seq-len 1,024`."""
        value = self.values.value(number)
        shown = f"{value:,}" if self.values.step else format_count(value)
        return f"--{self.values.flag} {shown}"


def _answer(search: _Search, number: int) -> Planned:
    """Returns the plan of the largest value, with the bound that it meets."""
    values, beyond = search.values, search.trials.get(number + 1)
    bounded_by, reason = _bound(search, number)
    if bounded_by == "recipe":
        _require_another_value(search)

    # There is room where the option ends: the fastest plan.
    planned = search.trials[number].planned
    if bounded_by == "option":
        planned = search.fastest(number) or planned
    assert planned is not None
    largest = Largest(
        option=values.flag,
        value=values.value(number),
        next_value=values.value(number + 1) if number < values.last else None,
        next_needed_bytes=None if beyond is None else beyond.needed_bytes,
        bounded_by=bounded_by,
        reason=f"{search.named(number)}: {reason}",
        tried=tuple(trial.in_words for trial in search.history),
    )
    plan = replace(planned.plan, pinned=tuple(sorted(search.question.pins)))
    return replace(planned, plan=plan, largest_found=largest)


def _require_another_value(search: _Search) -> None:
    """Raises RecipeError where every value but the recipe's own is refused: the option contradicts another one."""
    refusals = [trial.refusal for trial in search.history if trial.refusal]
    if refusals and len(search.history) - len(refusals) == 1:
        raise RecipeError(refusals[-1])


def _bound(search: _Search, number: int) -> tuple[Literal["bytes", "option", "recipe", "time"], str]:
    """Returns the bound of the value, in a word and in a clause."""
    values, beyond = search.values, search.trials.get(number + 1)
    needed = f"{_in_mib(search.trials[number].needed_bytes)} of {_in_mib(search.place.budget_bytes)}"
    if number == values.last:
        return "option", f"{values.why_most}, and not the bytes: its smallest plan needs {needed}"
    if beyond is not None and beyond.settled and beyond.refusal:
        return "recipe", f"beyond it the recipe refuses, {beyond.refusal}"

    next_value = f"{values.value(number + 1):,}"
    if beyond is not None and beyond.settled:
        at_once = " at once" if values.option == "batch_size" else ""
        more = _in_mib(beyond.needed_bytes)
        return "bytes", f"{needed} in its smallest plan; {next_value}{at_once} would need {more}"
    found = "was not tried" if beyond is None else "was only tried with the same levers"
    return "time", f"it fits, {needed}, and within the time limit of planning {next_value} {found}"


def _refuse(search: _Search) -> NoReturn:
    """Raises the refusal of the least value, which does not fit."""
    least = search.trials[0]
    why = least.refusal
    if least.planned is not None:
        verb = "needs" if least.planned.ledger.source == "compiled" else "is estimated to need"
        why = f"its smallest plan {verb} {format_budget(least.planned.ledger.needed_bytes)}"
    raise BudgetError(
        f"no --{search.values.flag} fits in {format_bytes(search.place.budget_bytes)}: the least that is tried is"
        f" {least.value:,}, and {why}. Give a larger --memory, or plan for it alone to see what would help",
        budget_bytes=search.place.budget_bytes,
        floor_bytes=least.needed_bytes,
    )


def _in_mib(size: int | None) -> str:
    """Returns bytes so exactly that two values one step apart differ."""
    return "an unknown number of MiB" if size is None else f"{size / MIB:,.1f} MiB"
