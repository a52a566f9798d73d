"""What a little more memory would buy, or a little less would cost: among the plans that the search has looked at.

Nothing is compiled for it. A search compiles the fastest levers first and stops at those that fit, so of more memory
it knows nearly all; of less only what was on its way. Times are by the chip's rates, of both plans: those that were
timed here are too few to compare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from plimsoll.planned import Ledger, OtherBudget, Plan
from plimsoll.planner.candidates import NEAR, Candidate, same_step
from plimsoll.planner.types import Problem
from plimsoll.units import GIB

Price = Callable[[Candidate, Plan, Problem], Ledger]
"""Of a candidate's step under a plan that differs in how it saves and reads."""


def other_budgets(
    problem: Problem, found: Iterable[Candidate], chosen: Candidate, price: Price
) -> tuple[OtherBudget, ...]:
    """Returns the best plans for a smaller and for a larger budget. `chosen` is one of the candidates `found`.

    What fits here and was not chosen is not bought by more memory, whatever the rates say of it: the clock knew better.
    """
    candidates = [one for one in found if one.analysis is not None]
    mine = next((one for one in candidates if same_step(one.plan) == same_step(chosen.plan)), None)
    if mine is None:
        return ()
    mine = replace(chosen, seconds=mine.seconds, analysis=chosen.analysis or mine.analysis)
    too_large = [one for one in candidates if _inside(one, problem, price) is None]
    less, more = (replace(problem, budget_bytes=budget) for budget in _around(problem))
    stays = _inside(mine, less, price) is not None
    return (
        _at(less, [mine] if stays else candidates, mine.seconds, price),
        _at(more, [mine, *too_large], mine.seconds, price),
    )


def _around(problem: Problem) -> tuple[int, int]:
    """Returns a budget of a GiB less, or half where there is no GiB to take, and one of a GiB more."""
    budget = problem.budget_bytes
    return (budget - GIB if budget > GIB else budget // 2), budget + GIB


def _at(elsewhere: Problem, candidates: list[Candidate], by_rates: float, price: Price) -> OtherBudget:
    fitting = [inside for one in candidates if (inside := _inside(one, elsewhere, price)) is not None]
    if not fitting:
        return OtherBudget(budget_bytes=elsewhere.budget_bytes, plan=None, peak_bytes=None, step_ratio=None)
    fastest = min(one.seconds for one in fitting)
    best = min((one for one in fitting if one.seconds <= NEAR * fastest), key=Candidate.preference)
    return OtherBudget(
        budget_bytes=elsewhere.budget_bytes, plan=best.plan, peak_bytes=best.peak, step_ratio=best.seconds / by_rates
    )


def _inside(one: Candidate, elsewhere: Problem, price: Price) -> Candidate | None:
    """Returns the candidate saved and read as the search would choose for that budget; None if it does not fit."""
    for plan in _ways(one.plan, elsewhere):
        book = price(one, plan, elsewhere)
        if book.fits:
            return replace(one, plan=plan, ledger=book)
    return None


def _ways(plan: Plan, elsewhere: Problem) -> Iterator[Plan]:
    deepest = elsewhere.pins.get("prefetch", max(elsewhere.host_bytes))
    yield replace(plan, async_save=elsewhere.pins.get("async_save", True), prefetch=deepest)
    for depth in sorted(elsewhere.host_bytes, reverse=True):
        yield replace(plan, async_save=elsewhere.pins.get("async_save", False), prefetch=depth)
