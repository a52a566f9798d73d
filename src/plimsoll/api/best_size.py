"""The model size whose predicted final loss is lowest for the bytes and the hours: `--hours 6 --best-size`.

Every size that is tried is planned, so its tokens per second are those of a plan that fits: timed on a CPU, estimated
for an accelerator. The hours give its steps, these its tokens, and the law its final loss (api/loss_law.py). Over the
logarithm of the size that loss is smooth and has one lowest point. So few sizes are planned: between and beyond them
the seconds of a step are interpolated, and the size that is lowest by that is planned next, then one on either side.

All sizes have the same tokenizer, because losses per token of different ones cannot be compared.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from plimsoll.api.hours import steps_in
from plimsoll.api.loss_law import (
    FITTED_PARAMETERS,
    FITTED_TOKENS,
    LossLaw,
    Observed,
    by_probable_laws,
    corrected,
    effective_tokens,
)
from plimsoll.api.option_values import Steps
from plimsoll.errors import BudgetError, RecipeError
from plimsoll.planned import BestSize, Planned, TriedSize
from plimsoll.recipes.base import Recipe
from plimsoll.recipes.overrides import overridden
from plimsoll.units import format_count, format_seconds

Say = Callable[[str], None]
PlanOf = Callable[[Recipe], Planned]

MOST_PLANS = 7
"""Sizes that are planned at most."""
NEAR = 1.15
"""Times a size that one is as good as the same: its loss differs by less than the law knows."""
SIDE = 3.0
"""Times a size within which another is planned on either side of the best."""
SMALLEST = 10_000
"""Least number of parameters that is looked at."""
SPREAD = 30.0
"""Times the best size that sizes may be which other laws find best."""


def find_best_size(
    recipe: Recipe,
    plan_of: PlanOf,
    *,
    hours: float,
    earlier: Callable[[Recipe], Sequence[Observed]] = lambda recipe: (),
    say: Say = lambda text: None,
) -> Planned:
    """Returns the plan of the best size, with `best_size_found` saying its options and how it was found.

    Args:
        recipe: The recipe; the size in it is tried first.
        plan_of: Plans a recipe.
        hours: Time from the start of the training process to its end.
        earlier: Returns finished runs that can be compared with a recipe.
        say: Called with what is being done.

    Raises:
        BudgetError: No size fits.
        RecipeError: The recipe has no size to look for, the speed of the chip is not known, or the time is too short.
    """
    if "target_params" not in type(recipe).__dataclass_fields__ or recipe.rate_unit != "tokens":
        raise RecipeError(
            "--best-size looks for the best --target-params of a language model, and this recipe has no such option:"
            " `stories` and `code` have, others keep the size that they say"
        )
    size = getattr(recipe, "target_params", SMALLEST)
    free = overridden(recipe, {"target_params": size, "steps": 1})  # a shape gives way
    return _Search(replace(free, steps=None), plan_of, 3600 * hours, earlier, say).run(size)


@dataclass
class _Search:
    recipe: Recipe
    plan_of: PlanOf
    seconds: float
    earlier: Callable[[Recipe], Sequence[Observed]]
    say: Say
    grid: Steps = field(default_factory=lambda: Steps("target_params", 0))
    """Sizes by their numbers: those of two digits."""
    plans: dict[int, Planned] = field(default_factory=dict)
    """Plans that fit, by the number of the size."""
    refused: dict[int, BudgetError] = field(default_factory=dict)
    recipes: dict[int, Recipe | None] = field(default_factory=dict)
    """Recipes of sizes; None where the recipe has no such size."""
    same: dict[str, int] = field(default_factory=dict)
    """Options that all sizes have in common."""
    law: LossLaw = field(default_factory=LossLaw)
    runs: Sequence[Observed] = ()
    tokens_per_step: int = 0

    def run(self, size: int) -> Planned:
        if limit := self.recipe.most("target_params"):
            self.grid = replace(self.grid, most=limit[0])
        self.data, self.held_out = self.recipe.data_tokens, self.recipe.held_out_tokens
        start, settled = self.grid.number(size), False
        self._compare_at(start)
        while (number := self._next(start)) is not None:
            self._ask(number)
            if not settled and self.plans:
                start, settled = self._lowest(), True
                if self._sized(start).same_for_all_sizes != self.same:  # another tokenizer: all of them have it then
                    self.plans, self.refused = {}, {}
                    self._compare_at(start)
                    start = next(each for each in range(start, self.grid.last) if self._reachable(each))
        if not self.plans:
            raise self._none_fits()
        return self._answer(min(self.plans, key=self._loss))

    # Which size is next.

    def _next(self, start: int) -> int | None:
        """Returns the number of the size to plan next; None once enough is known."""
        tried = self.plans.keys() | self.refused.keys()
        if not tried:
            return start
        if len(tried) >= MOST_PLANS:
            return None
        if not self.plans:
            smaller = self.grid.number(max(SMALLEST, self.grid.value(min(tried)) / 4))
            return smaller if smaller not in tried and self._reachable(smaller) else None
        lowest = self._lowest()
        if all(self._factor(lowest, number) > NEAR for number in self.plans):
            return lowest
        best = min(self.plans, key=self._loss)
        for times in (2.0, 0.5):
            side = self.grid.number(times * self.grid.value(best))
            there = any(
                (number > best) == (times > 1) and self._factor(best, number) <= SIDE for number in tried - {best}
            )
            if not there and side in self._numbers() and self._reachable(side):
                return side
        return None

    def _numbers(self) -> range:
        """Returns the numbers of the sizes that come into question: not beyond the middle to one that does not fit."""
        last = self.grid.number(min(self.grid.most, 100 * self.grid.value(max(self.plans))))
        if too_large := self._too_large():
            last = min(last, self.grid.number(math.sqrt(self.grid.value(max(self.plans)) * self.grid.value(too_large))))
        return range(self.grid.number(SMALLEST), last + 1)

    def _too_large(self) -> int | None:
        """Returns the number of the least size that does not fit, of those beyond what does; None if all fit."""
        return min((number for number in self.refused if number > max(self.plans)), default=None)

    def _lowest(self) -> int:
        """Returns the number of the size whose loss is lowest, as far as is known, of those that the recipe has."""
        while True:
            unreachable = {number for number, recipe in self.recipes.items() if recipe is None}
            number = min((each for each in self._numbers() if each not in unreachable), key=self._loss)
            if number in self.plans or self._reachable(number):
                return number

    def _reachable(self, number: int) -> bool:
        """Returns whether the recipe has a shape of this size."""
        if number not in self.recipes:
            try:
                self.recipes[number] = self._at(number)
            except RecipeError:
                self.recipes[number] = None
        return self.recipes[number] is not None

    def _factor(self, one: int, other: int) -> float:
        return math.exp(abs(math.log(self.grid.value(one) / self.grid.value(other))))

    # What is known of a size.

    def _sized(self, number: int, **same: int) -> Recipe:
        return overridden(self.recipe, {"target_params": self.grid.value(number), **same})

    def _at(self, number: int) -> Recipe:
        """Returns the recipe of a size. Raises RecipeError if it has no shape of that."""
        changed = self._sized(number, **self.same)
        getattr(changed, "shape", None)
        return changed

    def _compare_at(self, number: int) -> None:
        """Settles what all sizes have in common, and the law that earlier runs like that correct."""
        recipe = self._sized(number)
        self.same, self.recipes = dict(recipe.same_for_all_sizes), {}
        self.runs = self.earlier(recipe)
        self.law = corrected(self.runs)

    def _step_seconds(self, number: int) -> float:
        """Returns the seconds of a step, by a line on logarithmic axes through the two plans around it, or nearest to
        it; where one alone is known, a step takes as long as its size says."""
        known = sorted((math.log(self.grid.value(each)), math.log(_seconds(self.plans[each]))) for each in self.plans)
        at = math.log(self.grid.value(number))
        if len(known) == 1:
            return math.exp(known[0][1] + at - known[0][0])
        right = min(max(1, bisect_left(known, (at,))), len(known) - 1)
        (size, seconds), (larger, longer) = known[right - 1 : right + 1]
        return math.exp(seconds + (longer - seconds) * (at - size) / (larger - size))

    def _steps(self, step_seconds: float) -> int:
        return steps_in(
            self.seconds, step_seconds=step_seconds, tokens_per_step=self.tokens_per_step, held_out=self.held_out
        )

    def _effective(self, step_seconds: float) -> float:
        """Returns the effective tokens of a run; 0 where the time is too short for a step."""
        return effective_tokens(self._steps(step_seconds) * self.tokens_per_step, self.data)

    def _loss(self, number: int) -> float:
        tokens = self._effective(self._step_seconds(number))
        return self.law.loss(self.grid.value(number), tokens) if tokens else math.inf

    def _ask(self, number: int) -> None:
        size = self.grid.value(number)
        self.say(f"planning for --target-params {format_count(size)}")
        try:
            recipe = self.recipes[number] = self._at(number)
            planned = self.plan_of(recipe)
        except BudgetError as refusal:
            self.refused[number] = refusal
            return
        if planned.step_seconds is None or planned.tokens_per_step is None:
            raise RecipeError(
                f"--best-size needs the seconds of a step, and the rates of {planned.plan.chip} are not known: add them"
                " to a chip file (docs/chips.md), or give --target-params"
            )
        self.plans[number], self.tokens_per_step = planned, planned.tokens_per_step

    # What is answered.

    def _none_fits(self) -> BudgetError:
        smallest = min(self.refused)
        problem = self.refused[smallest]
        return BudgetError(
            f"no size fits: the smallest that was tried is --target-params {format_count(self.grid.value(smallest))},"
            f" and {problem}",
            budget_bytes=problem.budget_bytes,
            floor_bytes=problem.floor_bytes,
        )

    def _answer(self, best: int) -> Planned:
        planned = self.plans[best]
        steps = self._steps(_seconds(planned))
        if not steps:
            raise RecipeError(
                f"--hours {self.seconds / 3600:g} are too short for one step of --target-params"
                f" {format_count(self.grid.value(best))}, which takes {format_seconds(_seconds(planned))} beside the"
                f" start and evaluations: give more hours, or a smaller --batch-size"
            )
        likely, excess = self._uncertainty(best)
        found = BestSize(
            hours=self.seconds / 3600,
            reserved_seconds=self.seconds - steps * _seconds(planned),
            fields={"target_params": self.grid.value(best), **self.same, "steps": steps},
            tried=tuple(self._tried(number) for number in sorted(self.plans.keys() | self.refused.keys())),
            likely_sizes=(round(likely[0]), round(likely[1])),
            likely_excess=excess,
            source=planned.step_seconds_source,
            data_tokens=self.data,
            runs=tuple(run.run for run in self.runs),
            notes=tuple(self._notes(best)),
        )
        return replace(planned, best_size_found=found)

    def _tried(self, number: int) -> TriedSize:
        size = self.grid.value(number)
        if (refusal := self.refused.get(number)) is not None:
            return TriedSize(target_params=size, peak_bytes=refusal.floor_bytes, refused=str(refusal))
        planned = self.plans[number]
        steps = self._steps(_seconds(planned))
        loss = loss_range = None
        if steps:
            loss = self.law.loss(size, self._effective(_seconds(planned)))
            ends = [self._effective(at) or 1.0 for at in planned.step_seconds_range or (_seconds(planned),) * 2]
            loss_range = self.law.interval(size, ends[0])[0], self.law.interval(size, ends[1])[1]
        return TriedSize(
            target_params=size,
            parameters=planned.parameters,
            tokens_per_second=self.tokens_per_step / _seconds(planned),
            steps=steps,
            tokens=steps * self.tokens_per_step,
            loss=loss,
            loss_range=loss_range,
            peak_bytes=planned.peak_bytes,
        )

    def _uncertainty(self, best: int) -> tuple[tuple[float, float], float]:
        """Returns what other laws say of the choice (`by_probable_laws`), of sizes that may fit."""
        value, numbers = self.grid.value, self._numbers()
        last = max(self.plans) if self._too_large() else min(numbers[-1], self.grid.number(value(best) * SPREAD))
        near = range(max(numbers[0], self.grid.number(value(best) / SPREAD)), last + 1)
        known = [number for number in (best, *near) if self.recipes.get(number, self.recipe) is not None]
        sizes = [(value(number), self._effective(self._step_seconds(number))) for number in known]
        return by_probable_laws(self.law, [(size, tokens) for size, tokens in sizes if tokens])

    def _notes(self, best: int) -> list[str]:
        tried = self._tried(best)
        notes: list[str] = []
        assert tried.tokens is not None
        too_large = self._too_large()
        if too_large and best == max(self.plans) and self._loss(self._numbers()[-1]) < self._loss(best):
            notes.append(f"the budget bounds it: {format_count(self.grid.value(too_large))} parameters do not fit")
        if self.data is None:
            notes.append("how many tokens the data has is not known: none is taken to be read twice")
        elif tried.tokens > self.data:
            worth = format_count(self._effective(_seconds(self.plans[best])))
            notes.append(
                f"{tried.tokens / self.data:.1f} epochs of about {format_count(self.data)} tokens, which count as"
                f" {worth} new ones"
            )
        inside = FITTED_PARAMETERS[0] <= tried.target_params <= FITTED_PARAMETERS[1]
        if not inside or not FITTED_TOKENS[0] <= tried.tokens <= FITTED_TOKENS[1]:
            notes.append(
                "the law was fitted on 70M to 16B parameters and 5B to 500B tokens, and this is outside: which size is"
                " best is known better than its loss"
            )
        if (vocab := getattr(self.recipes.get(best), "vocab", 0)) and (tried.loss or 0) > math.log(vocab):
            notes.append(
                f"guessing among {vocab:,} tokens has a loss of {math.log(vocab):.2f}, and the law predicts more: take"
                " its losses as an order of sizes. Finished runs of two or three sizes give it figures"
            )
        return notes


def _seconds(planned: Planned) -> float:
    """Returns the seconds of a step, which are known of every plan that is kept here."""
    assert planned.step_seconds is not None
    return planned.step_seconds
