"""Does it fit? An answer by formula, before any compiler is asked: `plimsoll plan` prints it at once.

The plans are those that the search would look at, with the user's pins. Their state is exact; temporaries are an
interval that the recipe computes from the model's shape (`Recipe.temporaries`). No JAX, no child process.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from plimsoll.planned import AtOnce, ByFormula, Plan
from plimsoll.planner import chips
from plimsoll.planner.belief import with_temporaries
from plimsoll.planner.chips import Chip
from plimsoll.planner.estimate import ledger
from plimsoll.planner.prices import NO_STEP, USUAL
from plimsoll.planner.space import combinations, smaller
from plimsoll.planner.types import Problem, Rehearsal, Static
from plimsoll.recipes.base import Recipe
from plimsoll.types import Storage

NO_EVALUATION = Rehearsal(process_bytes=USUAL.process_bytes, starting_bytes=0, init_temp_bytes=0, evaluate_temp_bytes=0)
"""A training step needs more than to start and to evaluate: its bytes alone are a formula's."""


def at_once(recipe: Recipe, problem: Problem, target: Chip) -> AtOnce | None:
    """Returns the smallest plan by formula; None where the recipe has no formula for this chip.

    Args:
        recipe: The recipe.
        problem: What is planned.
        target: Its chip.

    Raises:
        RecipeError: A pin is impossible on this chip, or beside another one.
    """
    if target.platform != "cuda" or target.devices > 1 or recipe.state_by_formula(Storage()) is None:
        return None

    @cache
    def static_of(fsdp: int, storage: Storage) -> Static:
        fields = recipe.state_by_formula(storage)
        assert fields is not None
        return Static(**fields)

    plans = [plan for each in combinations(problem, chips.rates(target), static_of) for plan in each.plans.values()]
    found = [of_plan(recipe, problem, plan, static=static_of(1, plan.storage)) for plan in plans]
    smallest = min(found, key=lambda each: each.likely_bytes)
    low, high = min(each.low_bytes for each in found), min(each.high_bytes for each in found)
    return AtOnce(budget_bytes=problem.budget_bytes, smallest=replace(smallest, low_bytes=low, high_bytes=high))


def of_plan(recipe: Recipe, problem: Problem, plan: Plan, *, static: Static | None = None) -> ByFormula:
    """Returns the peak of one plan by formula. The recipe has one.

    Args:
        recipe: The recipe.
        problem: What is planned.
        plan: The plan.
        static: Its state, where it is known already.
    """
    if static is None:
        fields = recipe.state_by_formula(plan.storage)
        assert fields is not None
        static = Static(**fields)
    *_, least = smaller(plan, problem)

    def peak(bytes_: float) -> int:
        analysis = with_temporaries(NO_STEP, bytes_)
        found = ledger(least, problem, static=static, analysis=analysis, rehearsal=NO_EVALUATION)
        return found.predicted_peak_bytes

    low, likely, high = map(peak, recipe.temporaries(plan))
    return ByFormula(plan=plan, low_bytes=low, likely_bytes=likely, high_bytes=high)
