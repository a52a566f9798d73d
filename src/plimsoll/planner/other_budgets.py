"""What a little more memory would buy, or a little less would cost: among the plans that the search has looked at.

Nothing is compiled for it. A search compiles the fastest levers first and stops at those that fit, so of more memory
it knows nearly all; of less only what was on its way. Times are by the chip's rates, of both plans: those that were
timed here are too few to compare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from plimsoll.planned import Ledger, OtherBudget, Plan
from plimsoll.planner.candidates import Candidate, preferred, same_step, smaller
from plimsoll.planner.types import Analysis, Problem
from plimsoll.units import GIB

Price = Callable[[Plan, Analysis, Problem], Ledger]
"""Ledger of an analysed step under a plan that differs in how it saves and reads."""


def other_budgets(
    problem: Problem, candidates: Iterable[Candidate], chosen: Candidate, price: Price
) -> tuple[OtherBudget, ...]:
    """Returns the best plans for a smaller and for a larger budget. `chosen` is one of the `candidates`.

    Less is by a GiB, or half where there is no GiB to take; more is by a GiB. What fits here and was not chosen is not
    bought by more memory, whatever the rates say of it: the clock knew better.
    """
    analysed = [candidate for candidate in candidates if candidate.analysis is not None]
    mine = next((each for each in analysed if same_step(each.plan) == same_step(chosen.plan)), None)
    if mine is None:
        return ()
    mine = replace(chosen, seconds=mine.seconds, analysis=chosen.analysis or mine.analysis)
    budget = problem.budget_bytes
    less = replace(problem, budget_bytes=budget - GIB if budget > GIB else budget // 2)
    more = replace(problem, budget_bytes=budget + GIB)
    too_large = [candidate for candidate in analysed if _fitting(candidate, problem, price) is None]
    stays = _fitting(mine, less, price) is not None
    return (
        _best([mine] if stays else analysed, less, mine.seconds, price),
        _best([mine, *too_large], more, mine.seconds, price),
    )


def _best(candidates: list[Candidate], elsewhere: Problem, by_rates: float, price: Price) -> OtherBudget:
    fitting = [variant for each in candidates if (variant := _fitting(each, elsewhere, price)) is not None]
    if not fitting:
        return OtherBudget(budget_bytes=elsewhere.budget_bytes, plan=None, peak_bytes=None, step_ratio=None)
    best = preferred(fitting)
    return OtherBudget(
        budget_bytes=elsewhere.budget_bytes, plan=best.plan, peak_bytes=best.peak, step_ratio=best.seconds / by_rates
    )


def _fitting(candidate: Candidate, elsewhere: Problem, price: Price) -> Candidate | None:
    """Returns the candidate saved and read as the search would choose for that budget; None if it does not fit."""
    assert candidate.analysis is not None
    deepest = elsewhere.pins.get("prefetch", max(elsewhere.host_bytes))
    roomiest = replace(candidate.plan, async_save=elsewhere.pins.get("async_save", True), prefetch=deepest)
    for plan in (roomiest, *smaller(roomiest, elsewhere)):
        book = price(plan, candidate.analysis, elsewhere)
        if book.fits:
            return replace(candidate, plan=plan, ledger=book)
    return None
