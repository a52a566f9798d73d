"""The search for a plan: questions are asked until no answer is expected to change the choice.

Evidence is what was answered (evidence.py), an objective prices candidates by it (objectives.py), and the policy says
what to ask next (policy.py). What is returned was compiled, fits and, where plans are timed, was timed. A budget is
refused only where no candidate has a chance to fit, and after the smallest was compiled.
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
"""Seconds that a trial process is taken to need."""
TRIAL_SHARE = 0.1
"""Share of the time of a run that a trial may take."""

Say = Callable[[str], None]


@dataclass
class Desk:
    """Where questions are asked."""

    compiler: Compiler
    say: Say = lambda text: None
    """Called with what is being done."""
    deadline: Deadline = field(default_factory=Deadline)
    """Time after which the best plan is taken; where none is known by then, the first one that is."""
    said: Candidate | None = None
    """The plan of which it was said that it fits."""


def find_fastest(problem: Problem, desk: Desk) -> Planned:
    """Returns the fastest plan that fits, as far as it is found.

    Raises:
        BudgetError: No plan fits; with the smallest plan, and what would fit.
        PlimsollError: Nothing can be planned here.
    """
    evidence = begin(problem, desk)
    chosen = settle(evidence, Fastest(evidence), desk)

    # Nothing is likely to fit: the smallest plan shows whether it does.
    if chosen is None:
        smallest = settle(evidence, Smallest(evidence), desk)
        chosen = settle(evidence, Fastest(evidence), desk)
        if chosen is None and desk.deadline.was_interrupted:
            raise KeyboardInterrupt
        if chosen is None:
            raise refused(evidence, smallest, desk)

    return explained(evidence, chosen, desk.compiler.compiles, desk.deadline.words)


def find_smallest(problem: Problem, desk: Desk) -> Planned:
    """Returns the plan that needs least, whether it fits or not. Raises as `find_fastest` does."""
    evidence = begin(problem, desk)
    smallest = settle(evidence, Smallest(evidence), desk)
    if smallest is None:
        raise refused(evidence, None, desk)

    planned = explained(evidence, smallest, desk.compiler.compiles)
    budget = format_budget(planned.ledger.needed_bytes)
    reason = f"the smallest plan{desk.deadline.words}: it fits in {budget} and more"
    return replace(planned, reason=reason)


def begin(problem: Problem, desk: Desk) -> Evidence:
    """Returns the evidence before the first question: rates, state, and what there is to choose from."""
    static_of = cache(desk.compiler.static)
    try:
        imported_bytes = desk.compiler.imported_bytes()  # beside the imports of the compile child, before it times
        rates = desk.compiler.rates()
        space = combinations(problem, rates, static_of)
    except DoesNotCompile as failure:  # not on one plan, but on what all of them need
        raise PlimsollError(
            f"{problem.recipe} cannot be planned for {problem.chip}: {failure}. `plimsoll doctor` says whether this"
            " machine is ready"
        ) from None
    return Evidence(problem, rates, static_of, space, imported_bytes)


def settle(evidence: Evidence, objective: Fastest, desk: Desk) -> Candidate | None:
    """Asks until nothing is worth asking, or the time is over. Returns the best candidate; None where there is none."""
    workers = desk.compiler.workers
    running: dict[Future[Any], Inquiry] = {}
    pool = ThreadPoolExecutor(workers)
    try:
        while True:
            objective.is_late = desk.deadline.is_over()
            wanted = inquiries(evidence, objective)

            known = best(evidence, objective)
            say_known(objective, known, wanted, desk)

            # Ask as much as there are compile processes.
            for inquiry in allowed(wanted, running.values(), workers):
                future = pool.submit(ask, inquiry, evidence, desk)
                running[future] = inquiry
            if not running or (objective.is_late and not wanted):
                return known

            # Learn what was answered. Once the time is over, that alone can end the search.
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
    """Says the budget of the best plan so far, once, while a better one is looked for."""
    if known in (None, desk.said) or not wanted or wanted[0].verb == "prepare":
        return
    desk.said = known
    needed = round(objective.evidence.needed(known).likely)
    desk.say(f"fits in {format_budget(needed)}; looking for {objective.goal}")


def allowed(wanted: Iterable[Inquiry], running: Iterable[Inquiry], workers: int) -> list[Inquiry]:
    """Returns the questions that may be asked now. What is timed is timed alone."""
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
    """Returns the answer of the compiler."""
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
                desk.say(f"weighing a trial process of {candidate.words}")
            return compiler.prepare(candidate.step, depth)
        case "time":
            return time_in_turn(candidate, evidence, compiler)


def depth_of_preparing(candidate: Candidate, evidence: Evidence) -> Depth:
    """Returns how well it is to be known what a run takes besides its step.

    A run that is so short that a trial would take too much of it has none, unless it fits only with one.
    """
    problem = evidence.problem
    if problem.prepares != "try" or problem.steps is None:
        return problem.prepares
    is_short = TRIAL_SHARE * problem.steps * evidence.seconds(candidate).likely < TRIAL_SECONDS
    peak = evidence.books(candidate)[1].predicted_peak_bytes
    fits_without = PREDICTED.needed_bytes(peak) <= problem.budget_bytes
    return "compile" if is_short and fits_without else "try"


def trace(combination: Combination, evidence: Evidence, compiler: Compiler) -> dict[int, Analysis]:
    """Returns the traces of the smallest and the largest micro-batch; of the smallest alone where no state fits beside
    its temporaries.
    """
    steps = combination.steps
    smallest, largest = min(steps), max(steps)
    traces = {smallest: compiler.trace(steps[smallest])}
    least = UNSEEN.low * traces[smallest].beyond_state_bytes
    if largest != smallest and least <= evidence.problem.budget_bytes:
        traces[largest] = compiler.trace(steps[largest])
    return traces


def time_in_turn(candidate: Candidate, evidence: Evidence, compiler: Compiler) -> float:
    """Returns the seconds of a step, as if it had been timed when the fastest was, whatever else runs now."""
    fastest = min(evidence.timed, key=evidence.timed.__getitem__, default=None)
    if fastest is None:
        (seconds,) = compiler.measure([candidate.step])
        return seconds
    seconds_of_fastest, seconds = compiler.measure([fastest.step, candidate.step])
    return seconds * evidence.timed[fastest] / seconds_of_fastest


def learn(evidence: Evidence, inquiry: Inquiry, answer: Future[Any], desk: Desk) -> None:
    """Adds an answer to the evidence, or why there is none."""
    try:
        evidence.learn(inquiry, answer.result())
    except DoesNotCompile as failure:
        evidence.fail(inquiry, str(failure))
        desk.say(f"{inquiry.candidate.words}: {failure}")

    # A run that takes long may be planned for longer.
    steps = evidence.problem.steps
    if inquiry.verb == "time" and steps is not None:
        desk.deadline.extend_for(steps * evidence.seconds(inquiry.candidate).likely)


def refused(evidence: Evidence, smallest: Candidate | None, desk: Desk) -> BudgetError:
    """Returns the refusal, with what would fit. For advice it looks no longer than for a plan."""
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
