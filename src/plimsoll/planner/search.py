"""Search for a plan: questions to the compiler, until no answer is expected to change the choice.

The evidence holds the answers (evidence.py). An objective gives candidates a cost (objectives.py), and the policy
chooses the next question (policy.py). The result is a plan that was compiled, fits and, where plans are timed, was
timed. A budget is refused only if no candidate can fit it, and after the smallest candidate was compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from plimsoll.errors import BudgetError, PlimsollError
from plimsoll.planned import Planned
from plimsoll.planner.bytes import PREDICTED
from plimsoll.planner.deadline import Deadline
from plimsoll.planner.evidence import UNSEEN, Evidence, Inquiry
from plimsoll.planner.explain import explained, priced
from plimsoll.planner.objectives import Fastest, Smallest
from plimsoll.planner.policy import best, inquiries
from plimsoll.planner.refusal import refusal
from plimsoll.planner.space import Candidate, Combination, combinations
from plimsoll.planner.types import Analysis, Compiler, Depth, DoesNotCompile, Problem
from plimsoll.types import Storage
from plimsoll.units import format_budget

TRIAL_SECONDS = 5.0
"""Assumed seconds of a trial process."""
TRIAL_SHARE = 0.1
"""Largest share of the training time that a trial process may take."""

Say = Callable[[str], None]


@dataclass
class Desk:
    """Compiler, time limit and progress messages of a search."""

    compiler: Compiler
    say: Say = lambda text: None
    """Function that is called with progress messages."""
    deadline: Deadline = field(default_factory=Deadline)
    """Time limit. After it the search returns the best plan so far, or continues to the first plan."""
    said: Candidate | None = None
    """Candidate that the latest progress message named as a plan that fits."""


def find_fastest(problem: Problem, desk: Desk) -> Planned:
    """Returns the fastest plan found that fits the budget.

    Raises:
        BudgetError: No plan fits. The message has the smallest plan and changes that would help.
        PlimsollError: The compiler cannot answer questions that all plans need.
    """
    evidence = begin(problem, desk)
    chosen = settle(evidence, Fastest(evidence), desk)

    # No plan is likely to fit. Compile the smallest plan to be certain.
    if chosen is None:
        smallest = settle(evidence, Smallest(evidence), desk)
        chosen = settle(evidence, Fastest(evidence), desk)
        if chosen is None and desk.deadline.was_interrupted:
            raise KeyboardInterrupt
        if chosen is None:
            raise refused(evidence, smallest, desk)

    return explained(evidence, chosen, desk.compiler.compiles, desk.deadline.words)


def find_smallest(problem: Problem, desk: Desk) -> Planned:
    """Returns the plan that needs the fewest bytes, whether it fits or not. Raises the errors of `find_fastest`."""
    evidence = begin(problem, desk)
    smallest = settle(evidence, Smallest(evidence), desk)
    if smallest is None:
        raise refused(evidence, None, desk)

    planned = explained(evidence, smallest, desk.compiler.compiles, least=True)
    budget = format_budget(planned.ledger.needed_bytes)
    reason = f"the smallest plan{desk.deadline.words}: it fits in {budget} and more"
    return replace(planned, reason=reason)


def begin(problem: Problem, desk: Desk) -> Evidence:
    """Returns the evidence at the start of a search: bytes of imports, rates of the chip, and all candidates."""
    static_of = cache(desk.compiler.static)
    try:
        imported_bytes = desk.compiler.imported_bytes()  # measured in another process, so before rates are timed
        rates = desk.compiler.rates()
        space = combinations(problem, rates, static_of)
    except DoesNotCompile as failure:  # no plan is possible without the imports, the rates and the candidates
        raise PlimsollError(
            f"{problem.recipe} cannot be planned for {problem.chip}: {failure}. `plimsoll doctor` checks whether this"
            " machine is ready"
        ) from None
    return Evidence(problem, rates, static_of, space, imported_bytes)


def settle(evidence: Evidence, objective: Fastest, desk: Desk) -> Candidate | None:
    """Asks questions until none is worthwhile or the time limit has passed. Returns the best candidate, if any."""
    workers = desk.compiler.workers
    running: dict[Future[Any], Inquiry] = {}
    pool = ThreadPoolExecutor(workers)
    try:
        while True:
            objective.is_late = desk.deadline.is_over()
            objective.may_time = desk.deadline.leaves_a_timing()
            wanted = inquiries(evidence, objective)

            known = best(evidence, objective)
            say_known(objective, known, wanted, desk)

            # Keep all compile processes busy.
            for inquiry in allowed(wanted, running.values(), workers):
                future = pool.submit(ask, inquiry, evidence, desk)
                running[future] = inquiry
            if not running or (objective.is_late and not wanted):
                return known

            # Wait for an answer. After the time limit, only an answer can end the search.
            seconds = None if objective.is_late else desk.deadline.left()
            done = wait(running, timeout=seconds, return_when=FIRST_COMPLETED).done
            for future in done:
                learn(evidence, running.pop(future), future, desk)
    except KeyboardInterrupt:
        known = best(evidence, objective)
        if known is None:
            raise
        desk.deadline.was_interrupted = True
        return known
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def say_known(objective: Fastest, known: Candidate | None, wanted: list[Inquiry], desk: Desk) -> None:
    """Prints the budget that the best plan so far fits, once per plan, while the search for a better one continues."""
    if known in (None, desk.said) or not wanted or wanted[0].verb == "prepare":
        return
    desk.said = known
    needed = round(objective.evidence.needed(known).likely)
    desk.say(f"fits in {format_budget(needed)}; looking for {objective.goal}")


def allowed(wanted: Iterable[Inquiry], running: Iterable[Inquiry], workers: int) -> list[Inquiry]:
    """Returns the questions to ask now: at most one per idle process and per combination. A timing runs alone."""
    under_way = list(running)
    chosen: list[Inquiry] = []
    for inquiry in wanted:
        others = [*under_way, *chosen]
        is_timing = any(other.verb == "time" for other in others)
        must_wait = inquiry.verb == "time" and bool(others)
        if is_timing or must_wait or len(others) >= workers:
            break
        combinations_asked = [other.candidate.combination for other in others]
        if inquiry.candidate.combination not in combinations_asked:
            chosen.append(inquiry)
    return chosen


def ask(inquiry: Inquiry, evidence: Evidence, desk: Desk) -> Any:
    """Returns the compiler's answer to a question about a candidate."""
    candidate = inquiry.candidate
    compiler = desk.compiler
    match inquiry.verb:
        case "trace":
            return trace(candidate.combination, evidence, compiler)
        case "compile":
            started = desk.deadline.clock()
            analysis = compiler.analyse(candidate.step)
            desk.deadline.compile_seconds = desk.deadline.clock() - started
            return analysis
        case "prepare":
            depth = depth_of_preparing(candidate, evidence)
            if depth == "try":
                desk.say(f"measuring a trial process of {candidate.words}")
            return compiler.prepare(candidate.step, depth)
        case "time":
            return time_in_turn(candidate, evidence, compiler)


def depth_of_preparing(candidate: Candidate, evidence: Evidence) -> Depth:
    """Returns the way to determine the bytes of initialisation, evaluation and the process (`types.Depth`).

    A short run gets no trial process, unless its plan fits only with the smaller margin after a trial.
    """
    problem = evidence.problem
    if problem.prepares != "try" or problem.steps is None:
        return problem.prepares
    is_short = TRIAL_SHARE * problem.steps * evidence.seconds(candidate).likely < TRIAL_SECONDS
    peak = evidence.books(candidate)[1].predicted_peak_bytes
    fits_without = PREDICTED.needed_bytes(peak) <= problem.budget_bytes
    return "compile" if is_short and fits_without else "try"


def trace(combination: Combination, evidence: Evidence, compiler: Compiler) -> dict[int, Analysis]:
    """Returns the traces of the smallest and the largest micro-batch.

    The largest is left out if the smallest exceeds the budget even by the lowest estimate of its temporaries.
    """
    steps = combination.steps
    smallest, largest = min(steps), max(steps)
    traces = {smallest: compiler.trace(steps[smallest])}
    least = UNSEEN.low * traces[smallest].beyond_state_bytes
    if largest != smallest and least <= evidence.problem.budget_bytes:
        traces[largest] = compiler.trace(steps[largest])
    return traces


def time_in_turn(candidate: Candidate, evidence: Evidence, compiler: Compiler) -> float:
    """Returns the seconds of a step, corrected for other load on the machine.

    The fastest candidate so far is timed again in turn. The correction is the ratio of its earlier to its new time.
    """
    fastest = min(evidence.timed, key=evidence.timed.__getitem__, default=None)
    if fastest is None:
        (seconds,) = compiler.measure([candidate.step])
        return seconds
    seconds_of_fastest, seconds = compiler.measure([fastest.step, candidate.step])
    return seconds * evidence.timed[fastest] / seconds_of_fastest


def learn(evidence: Evidence, inquiry: Inquiry, answer: Future[Any], desk: Desk) -> None:
    """Adds an answer or a failure to the evidence."""
    try:
        evidence.learn(inquiry, answer.result())
    except DoesNotCompile as failure:
        evidence.fail(inquiry, str(failure))
        desk.say(f"{inquiry.candidate.words}: {failure}")

    # Planning for a long run may take longer.
    steps = evidence.problem.steps
    if inquiry.verb == "time" and steps is not None:
        desk.deadline.extend_for(steps * evidence.seconds(inquiry.candidate).likely)


def refused(evidence: Evidence, smallest: Candidate | None, desk: Desk) -> BudgetError:
    """Returns the error that no plan fits, with advice.

    The search for advice may take as long as the search for a plan. After that no further change is tried.
    """
    static = evidence.static_of(1, Storage())
    least = None if smallest is None else priced(evidence, smallest)
    failures = list(evidence.failed.values())
    advice_ends = replace(desk.deadline)

    def would_fit(**changes: Any) -> bool:
        if advice_ends.is_over():
            return False
        changed = replace(evidence.problem, measure=False, prepares="trace", **changes)
        advised = begin(changed, desk)
        last = Smallest(advised).last()
        if advised.chance(last) == 0:
            return False
        inquiry = Inquiry("compile", last)
        try:
            advised.learn(inquiry, ask(inquiry, advised, desk))
        except DoesNotCompile:
            return False
        return advised.chance(last) == 1

    return refusal(evidence.problem, static, least, failures, would_fit)
