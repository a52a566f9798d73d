"""The fastest plan that fits, by asking the compiler what would change the decision most.

The search keeps beliefs about every candidate (belief.py) and what they cost (prices.py). Its loop asks one question
after another, or as many at once as there are compile processes: about the candidate that is expected to gain most
over the best one known. It ends when no answer is expected to gain SMALL of that, which grows to SMALL_AT_LAST as the
time is used up; where plans are timed for a long run, SMALL_OF_LONG.

What holds at every turn: the best one known was compiled and, where plans are timed, timed; it fits as far as is known;
and no candidate is left out but those that do not compile, and those whose least bytes are over the budget. A plan is
returned only once it was compiled and rehearsed for itself; a budget is refused only when none is left.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import Literal

from plimsoll.errors import PlimsollError
from plimsoll.levers.registry import in_words
from plimsoll.planned import Plan, Planned
from plimsoll.planner.belief import UNKNOWN, Beliefs, Interval, with_hope
from plimsoll.planner.candidates import NEAR, Candidate, alternative
from plimsoll.planner.estimate import sample
from plimsoll.planner.frontier import frontier
from plimsoll.planner.prices import Prices, View
from plimsoll.planner.refusal import CANNOT_RUN, refusal
from plimsoll.planner.space import Combination, combinations, same_step
from plimsoll.planner.speed import range_of
from plimsoll.planner.types import Analysis, Compiler, DoesNotCompile, Problem, Rehearsal, Static
from plimsoll.types import Storage
from plimsoll.units import format_budget, format_bytes, format_seconds

SMALL = 0.05
"""Share of a step's time that an answer must be expected to gain, to be asked for."""
SMALL_AT_LAST = 0.15
"""The same when the time is nearly used up, where it is limited: it grows evenly until then."""
SMALL_OF_LONG, TIMES_ASKING = 0.01, 4
"""Least such share where plans are timed for a run so long that it saves as many times what asking takes."""
SMALL_COMPILED = 0.02
"""The same of a candidate that is compiled and fits: what is left is to time a step of it."""
SMALL_BYTES = 0.01
"""Share of the smallest plan's bytes that an answer must be expected to gain, where the floor is looked for."""
TRACED_FIRST = 0.9
"""Worth of a trace over that of a compile, which must follow it; half of that while no plan is known that fits."""
ASKING_SECONDS = 5.0
"""Seconds that a compile and its timing are taken to need, where a run is short, and at least where it is long."""
CONFIRMING_SECONDS = 6.0
"""Seconds that confirming a plan is taken to need, of those that planning is given, before one was confirmed."""
GIVEN_UP = 12
"""Candidates that do not compile, for another reason than memory, after which nothing is expected to."""
SHARE_OF_TRAINING, MOST_SECONDS = 0.02, 120.0
"""Share of the time that a run will take, and most seconds, for which planning may go on where nobody said how long."""
FAIL_ALIKE = 8
"""Plans that end with the same error on the device, and none that runs, after which no other is tried."""

OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
"""XLA's word in the refusal of a compiler or an allocator that lacks the memory."""

Say = Callable[[str], None]
Verb = Literal["trace", "analyse", "rehearse", "measure"]


@dataclass(frozen=True)
class Question:
    """A question to the compiler about one candidate."""

    verb: Verb
    combination: Combination
    micro: int
    worth: float = 0.0
    """Expected gain, as a share of the best one's cost."""
    beside: tuple[Combination, int] | None = None
    """The fastest candidate that was timed, to be timed in turn with this one."""

    @property
    def step(self) -> Plan:
        return self.combination.steps[self.micro]

    @property
    def about(self) -> tuple[Combination, int | None]:
        """The candidate, or for a trace the combination: no two questions at once are about the same."""
        return self.combination, None if self.verb == "trace" else self.micro


def search(
    problem: Problem,
    compiler: Compiler,
    say: Say,
    *,
    within: float | None = None,
    smallest: bool = False,
    patient: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Planned:
    """Returns the fastest plan that fits, as far as it is found.

    Args:
        problem: What is planned.
        compiler: Who answers.
        say: Called with what is being done.
        within: Seconds after which the best confirmed plan is taken; None for as long as it takes. Where none is
            confirmed by then, the first one that is.
        smallest: Return the plan that needs least instead, whether it fits or not.
        patient: Take longer than `within` for a run that trains for long, as `problem.steps` says.
        clock: Clock in seconds.

    Raises:
        BudgetError: No plan fits; with the floor, and what would fit.
        PlimsollError: Nothing can be planned here.
    """
    deadline = math.inf if within is None else clock() + within
    try:
        found = Search(problem, compiler, say, deadline=deadline, patient=patient, clock=clock)
        return found.least() if smallest else found.run()
    except DoesNotCompile as failure:  # not on one plan, but on what all of them need
        raise PlimsollError(
            f"{problem.recipe} cannot be planned for {problem.chip}: {failure}. `plimsoll doctor` says whether this"
            " machine is ready"
        ) from None


def gains(views: Sequence[View], over: float) -> Iterator[float]:
    """Yields the expected gain of each, as a share of the cost `over`."""
    return (view.fits * view.cost.expected_gain(over) / over if over else view.fits for view in views)


def chances(views: Sequence[View], small: float) -> Iterator[float]:
    """Yields how likely each is to be the plan: that it fits, and that none does which is faster by the share `small`.

    What all costs are off by together, as before anything was compiled, changes nothing here.
    """
    by_cost = sorted(views, key=lambda view: view.cost.likely)
    costs = [view.cost.likely for view in by_cost]
    likeliest = [0.0, *accumulate((view.fits for view in by_cost), max)]
    return (
        view.fits * (1 - likeliest[bisect_left(costs, (1 - small) * view.cost.likely)])
        if view.cost.likely
        else view.fits
        for view in views
    )


class Search:
    """One search. `floor` may be asked for without `run`."""

    def __init__(
        self,
        problem: Problem,
        compiler: Compiler,
        say: Say,
        *,
        deadline: float = math.inf,
        patient: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.problem, self.compiler, self.say, self.deadline, self.clock = problem, compiler, say, deadline, clock
        self.given, self.patient = deadline - clock(), patient
        static_of: Callable[[int, Storage], Static] = cache(compiler.static)
        self.static = static_of(1, Storage())
        rates = compiler.rates()
        self.combinations = combinations(problem, rates, static_of)
        self.beliefs = Beliefs(self.combinations)
        self.prices = Prices(problem, rates, static_of, self.beliefs)
        self.failed: dict[Plan, str] = {}
        """Candidates that do not compile or run, and why."""
        self.cannot_run: Counter[str] = Counter()
        """Reasons why plans that compile do not run, but want of memory."""
        self.some_run = False
        self.notes: list[str] = []
        self.confirming_seconds, self.compiling_seconds = CONFIRMING_SECONDS, 0.0
        self.ended_early = self.interrupted = False
        self.advice_ends: float | None = None
        """Time until which is looked for what would fit, once a budget is refused: as long as planning may take."""

    # What is decided.

    def run(self) -> Planned:
        """Returns the plan. Raises BudgetError if none fits."""
        best = self._decided(self._by_time, self._best)
        if best is None:
            smallest = self.floor(enough=self._smallest_that_fits)  # whatever the time: it may be what fits
            if smallest is None or not smallest.ledger.fits:
                failures = [*self.failed.values()]
                raise refusal(self.problem, self.static, smallest, failures, self._would_fit)
            best = self._decided(self._by_time, self._best) or smallest  # less was needed than had been believed
        return self._planned(best)

    def least(self) -> Planned:
        """Returns the smallest plan. Raises BudgetError if nothing compiles."""
        smallest = self.floor()
        if smallest is None:
            raise refusal(self.problem, self.static, None, [*self.failed.values()], self._would_fit)
        budget = format_budget(smallest.ledger.needed_bytes)
        reason = f"the smallest plan{self._when_it_ended()}: it fits in {budget} and more"
        return replace(self._planned(smallest), reason=reason)

    def floor(self, enough: Callable[[], Candidate | None] | None = None) -> Candidate | None:
        """Returns the smallest plan, compiled and rehearsed for itself; None where nothing compiles.

        Args:
            enough: What is enough where the time is used up, or on Ctrl-C; by default the smallest that is known then.
        """
        self.say("looking for the smallest plan")
        return self._decided(self._by_bytes, self._smallest, enough)

    def _decided(
        self,
        questions: Callable[[], Iterable[Question]],
        best: Callable[[], Candidate | None],
        enough: Callable[[], Candidate | None] | None = None,
        *,
        gives_up: float = math.inf,
    ) -> Candidate | None:
        """Asks `questions`, those of most worth first, until there is none; returns the best one then known.

        Where the time is used up, or on Ctrl-C, it returns what is `enough` then, by default the best one. At the time
        when it `gives_up` it returns the best one, or None.
        """
        workers = self.compiler.workers
        running: dict[Future[object], Question] = {}
        pool = ThreadPoolExecutor(workers)
        try:
            while self.clock() < gives_up:
                if self._late() and (found := (enough or best)()) is not None:
                    self.ended_early = True
                    return found
                asked = {question.about for question in running.values()}
                for question in sorted(questions(), key=lambda question: -question.worth):
                    alone = question.verb == "measure" or any(each.verb == "measure" for each in running.values())
                    if len(running) >= workers or (alone and running):  # what is timed, is timed alone
                        break
                    if question.about not in asked:
                        asked.add(question.about)
                        running[pool.submit(self._ask, question)] = question
                if not running:
                    return best()
                left = None if self.deadline == math.inf else max(0.5, self._seconds_left())
                for future in wait(running, timeout=left, return_when=FIRST_COMPLETED).done:
                    self._learn(running.pop(future), future)
            return best()
        except KeyboardInterrupt:
            if (found := (enough or best)()) is None:
                raise
            self.ended_early = self.interrupted = True
            return found
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    # What is asked.

    def _by_time(self) -> Iterable[Question]:
        """Yields the questions whose answers are expected to make a step faster; at last, to confirm the best one."""
        if self._hopeless():
            return
        views = [view for view in self.prices.views() if view.step not in self.failed]
        known = [view for view in views if view.fits == 1 and self._next(view) in (None, "rehearse")]
        small, late = self._small(), self._late()
        best = min(known, key=lambda view: view.cost.likely * (1 - small * self._is_confirmed(view)), default=None)
        if best is None and self._processes_unknown():
            doubtful = [view for view in views if self._next(view) == "rehearse"]
            if doubtful:
                yield self._question(max(doubtful, key=lambda view: view.fits), "rehearse", 1.0)
                return
        compiling = max(ASKING_SECONDS, self.compiling_seconds)
        usual, small = (self._worth_asking(least, best, compiling) for least in (SMALL, small))
        to_time = self._worth_asking(SMALL_COMPILED, best, ASKING_SECONDS)
        if late:  # of those that are sure to fit the fastest: it may be the only one that is looked at
            least = min((view.cost.likely for view in views), default=0.0)
            worth = (view.fits + (least / view.cost.likely if view.fits == 1 else 0.0) for view in views)
        else:
            worth = chances(views, small) if best is None else gains(views, best.cost.likely)
        wanted, hurried = False, False
        for view, gain in zip(views, worth, strict=True):
            verb = self._next(view)
            enough = min(small, to_time) if verb == "measure" else small
            if verb is not None and view is not best and (best is None or (gain > enough and not late)):
                wanted = True
                yield self._question(view, verb, gain, first=best is None)
            hurried |= verb is not None and view is not best and gain > usual
        self.ended_early = hurried and not wanted
        if best is not None and not wanted and self._next(best) == "rehearse":
            yield self._question(best, "rehearse", 0.0)

    def _by_bytes(self) -> Iterable[Question]:
        """Yields the questions whose answers are expected to show a smaller plan; at last, to confirm the smallest."""
        if self._hopeless():
            return
        needed: list[tuple[View, Interval]] = []
        for combination in reversed(self.combinations):  # of two that are believed to be alike, that of more levers
            micro = min(combination.plans)
            view = View(combination, micro, 1.0, UNKNOWN)
            if view.step not in self.failed and micro < self.beliefs.known[combination].too_large_from:
                needed.append((view, self.prices.needed(combination, micro)))
        known = [(view, bytes_) for view, bytes_ in needed if self._next(view) in (None, "rehearse", "measure")]
        confirmed = {view: SMALL_BYTES * self._is_confirmed(view) for view, _ in known}
        best = min(known, key=lambda each: each[1].likely * (1 - confirmed[each[0]]), default=None)
        over = best[1].likely if best is not None else 2 * max((bytes_.low for _, bytes_ in needed), default=1.0)
        wanted, least = False, min((view.micro for view, _ in needed), default=0)
        for view, bytes_ in needed:
            verb = self._next(view)
            gain = with_hope(bytes_, over).expected_gain(over) / over if over else 1.0
            if view.micro == least and verb != "rehearse" and self.beliefs.is_last(view.combination, least):
                # Whatever traces say: by the order of levers nothing is smaller. So it is where a search begins.
                gain = max(gain, 1.0 if best is None else 2 * SMALL_BYTES)
            if verb not in (None, "measure") and (best is None or view is not best[0]) and gain > SMALL_BYTES:
                wanted = True
                yield self._question(view, verb, gain)
        if best is not None and not wanted and not self._is_confirmed(best[0]):
            yield self._question(best[0], "rehearse", 0.0)

    def _question(self, view: View, verb: Verb, gain: float, *, first: bool = False) -> Question:
        beside = self._fastest_timed() if verb == "measure" else None
        factor = 1.0 if verb != "trace" else TRACED_FIRST / 2 if first else TRACED_FIRST
        return Question(verb, view.combination, view.micro, factor * gain, beside)

    def _is_confirmed(self, view: View) -> bool:
        return (view.combination, view.micro) in self.prices.rehearsed

    def _small(self) -> float:
        """Returns the least gain worth a question: it grows with time."""
        if not 0 < self.given < math.inf:
            return SMALL
        return SMALL + (SMALL_AT_LAST - SMALL) * min(1.0, max(0.0, 1 - self._seconds_left() / self.given))

    def _worth_asking(self, small: float, best: View | None, seconds: float) -> float:
        """Returns the least gain worth a question that takes `seconds`: `small`, less for a long run, more for a short
        one.
        """
        if best is None or self.problem.steps is None or not self.problem.measure:
            return small
        training = self.problem.steps * self.prices.seconds(best.combination, best.micro).likely
        least = ASKING_SECONDS / training  # not `seconds`: the first compile here takes longer than those that follow
        return max(least, min(small, max(SMALL_OF_LONG, TIMES_ASKING * seconds / training)))

    def _take_time(self) -> None:
        """Puts the deadline off for a run that will take so long that a faster step is worth it."""
        timed = self._fastest_timed()
        if not self.patient or self.problem.steps is None or timed is None:
            return
        training = self.problem.steps * self.prices.seconds(*timed).likely
        worth = min(MOST_SECONDS, SHARE_OF_TRAINING * training)
        self.deadline += max(0.0, worth - self.given)
        self.given = max(self.given, worth)

    def _seconds_left(self) -> float:
        """Returns the seconds until what is left is just enough for a compile and a confirmation, as they were."""
        return self.deadline - self.confirming_seconds - self.compiling_seconds - self.clock()

    def _late(self) -> bool:
        return self._seconds_left() <= 0

    def _fastest_timed(self) -> tuple[Combination, int] | None:
        timed = [(each, micro) for each, known in self.beliefs.known.items() for micro in known.slower]
        return min(timed, key=lambda each: self.prices.seconds(*each).likely, default=None)

    def _next(self, view: View) -> Verb | None:
        """Returns what is to be asked next of a candidate; None where everything is known."""
        known = self.beliefs.known[view.combination]
        if view.micro not in known.compiled:
            return "analyse" if known.traced else "trace"
        if 0 < view.fits < 1:
            return "rehearse"  # whether it fits hangs on the process
        if self.problem.measure and view.micro not in {*known.slower, *known.untimed}:
            return "measure"
        return None if self._is_confirmed(view) else "rehearse"

    def _processes_unknown(self) -> bool:
        """Returns whether what all candidates are off by alike is what a process weighs."""
        return self.prices.weighs_processes and not self.prices.processes

    def _hopeless(self) -> bool:
        """Returns whether so many plans failed, and none did not, that it will not be of the plan."""
        compiled = any(known.compiled for known in self.beliefs.known.values())
        others = sum(OUT_OF_MEMORY not in why for why in self.failed.values())
        alike = max(self.cannot_run.values(), default=0)
        return (not compiled and others >= GIVEN_UP) or (not self.some_run and alike >= FAIL_ALIKE)

    def _ask(self, question: Question) -> object:
        plan = question.step
        words = f"micro-batch {plan.micro_batch}, {in_words(plan.levers)}"
        if question.verb == "trace":
            small, *large = sample(sorted(question.combination.plans))
            micros = sorted({min(small, question.micro), *large, max(small, *large, question.micro)})
            return [(micro, self.compiler.trace(question.combination.steps[micro])) for micro in micros]
        started = self.clock()
        if question.verb == "analyse":
            self.say(f"{self.compiler.doing} {words}")
            found = self.compiler.analyse(plan)
            self.compiling_seconds = self.clock() - started
            return found
        if question.verb == "rehearse":
            self.say(f"measuring a trial process of {words}")
            found = self.compiler.rehearse(replace(plan, async_save=True))
            self.confirming_seconds = self.clock() - started
            return found
        self.say(f"timing {words}")
        beside = [] if question.beside is None else [question.beside[0].steps[question.beside[1]]]
        return self.compiler.measure([replace(each, async_save=True) for each in (*beside, plan)])

    # What is learned.

    def _learn(self, question: Question, answer: Future[object]) -> None:
        known = self.beliefs.known[question.combination]
        try:
            found = answer.result()
        except DoesNotCompile as problem:
            self._learn_failure(question, str(problem))
        else:
            if question.verb == "trace":
                self.beliefs.traced(question.combination, dict(found))  # type: ignore[call-overload]
            elif isinstance(found, Analysis):
                known.compiled[question.micro] = found
                if not self.problem.measure:
                    by_rates = self.prices.by_rates(question.combination, question.micro, found)
                    self.prices.learn_seconds(question.combination, question.micro, by_rates)
            elif isinstance(found, Rehearsal):
                self.prices.learn_rehearsal(question.combination, question.micro, found)
            else:
                *beside, seconds = found  # type: ignore[misc]
                self.some_run = True
                if question.beside is not None:  # as if both had been timed when the other was, whatever else runs now
                    seconds *= self.prices.seconds(*question.beside).likely / beside[0]
                self.prices.learn_seconds(question.combination, question.micro, seconds)
                self._take_time()
        self.prices.learned()

    def _learn_failure(self, question: Question, why: str) -> None:
        plan, known = question.step, self.beliefs.known[question.combination]
        words = f"micro-batch {plan.micro_batch}, {in_words(plan.levers)}"
        if question.verb == "measure" and self.problem.platform == "cpu":
            known.untimed.add(question.micro)
            self.notes.append(f"could not be timed: {words}: {why}")
            return
        if question.verb == "trace":
            self.failed |= dict.fromkeys(question.combination.steps.values(), f"{words}: {why}")
            return
        if question.verb == "measure" and OUT_OF_MEMORY not in why:
            self.cannot_run[why] += 1
        if question.verb == "analyse" and OUT_OF_MEMORY in why:
            known.too_large_from = min(known.too_large_from, question.micro)
        self.failed[plan] = f"{CANNOT_RUN if question.verb == 'measure' else ''}{words}: {why}"
        self.say(self.failed[plan])

    # What is told.

    def _settled(self) -> list[Candidate]:
        """Returns every candidate that was compiled and rehearsed for itself, each as its smallest variant."""
        return [
            self.prices.candidate(combination, micro, smallest=True)
            for combination, known in self.beliefs.known.items()
            for micro in known.compiled
            if (combination, micro) in self.prices.rehearsed and combination.steps[micro] not in self.failed
        ]

    def _best(self) -> Candidate | None:
        """Returns the settled candidate that fits and costs least."""
        costs = []
        for combination, known in self.beliefs.known.items():
            for micro in known.compiled:
                plan = combination.steps[micro]
                timed = not self.problem.measure or micro in {*known.slower, *known.untimed}
                settled = (combination, micro) in self.prices.rehearsed and plan not in self.failed
                if settled and timed and self.prices.fits(combination, micro) == 1:
                    costs.append((self.prices.cost(combination, micro).likely, combination, micro))
        if not costs:
            return None
        _, combination, micro = min(costs, key=lambda each: each[0])
        return self.prices.candidate(combination, micro)

    def _smallest(self) -> Candidate | None:
        return min(self._settled(), key=lambda candidate: candidate.ledger.needed_bytes, default=None)

    def _smallest_that_fits(self) -> Candidate | None:
        smallest = self._smallest()
        return smallest if smallest is not None and smallest.ledger.fits else None

    def _would_fit(self, **changes: object) -> Candidate | None:
        """Returns the plan of a problem with these changes, untimed; None where none fits either, or none was found.

        For all that may be advised together it looks as long as planning may take, and no longer.
        """
        if self.advice_ends is None:
            self.advice_ends = self.clock() + self.given
        changed = replace(self.problem, measure=False, **changes)  # type: ignore[arg-type]
        try:
            found = Search(changed, self.compiler, self.say, deadline=self.deadline, clock=self.clock)
            found.prices.processes |= self.prices.processes
            return found._decided(found._by_time, found._best, gives_up=self.advice_ends)
        except PlimsollError:
            return None

    def _compared(self) -> list[Candidate]:
        """Returns the candidates that fit, as far as is known, with seconds that can be compared; the fastest first."""
        found = [
            self.prices.candidate(view.combination, view.micro)
            for view in self.prices.views()
            if view.fits == 1 and view.step not in self.failed and self._has_seconds(view)
        ]
        return sorted((each for each in found if each.ledger.fits), key=lambda candidate: candidate.seconds)

    def _has_seconds(self, view: View) -> bool:
        known = self.beliefs.known[view.combination]
        timed = self.problem.measure and any(each.slower for each in self.beliefs.known.values())
        return view.micro in known.slower if timed else bool(known.traced)

    def _planned(self, chosen: Candidate) -> Planned:
        """Returns the result of the search."""
        problem, analysis, compared = self.problem, chosen.analysis, self._compared()
        others = [each for each in compared if same_step(each.plan) != same_step(chosen.plan)]
        source = "measured" if chosen.measured else "kernels" if analysis.kernel_seconds else "roofline"
        of_text = problem.rate_unit == "tokens"
        return Planned(
            plan=chosen.plan,
            ledger=chosen.ledger,
            recipe=problem.recipe,
            parameters=self.static.parameters,
            step_seconds=chosen.seconds,
            step_seconds_source=source,
            step_seconds_range=range_of(chosen.seconds, source, platform=problem.platform) if chosen.seconds else None,
            step_flops=analysis.flops,
            temporary_bytes=analysis.temp_bytes,
            largest_buffers=analysis.largest,
            chip_flops=self.prices.rates.flops[chosen.plan.precision],
            tokens_per_step=problem.effective_batch * problem.rate_per_example if of_text else None,
            examples_per_step=problem.effective_batch,
            sent_bytes=round(analysis.sent_bytes),
            compiles=self.compiler.compiles,
            left_out=tuple(dict.fromkeys([*self.failed.values(), *self.notes])),
            devices=problem.devices,
            hosts=problem.hosts,
            reason=self._reason(chosen, others),
            frontier=frontier(self.prices, chosen),
            alternatives=tuple(alternative(candidate, chosen) for candidate in others[:3]),
        )

    def _reason(self, chosen: Candidate, others: list[Candidate]) -> str:
        fastest = min((other.seconds for other in others), default=math.inf)
        slower = max(NEAR - 1, chosen.seconds / fastest - 1)  # a plan that was not confirmed may be faster by more
        which = (
            "the fastest" if chosen.seconds <= fastest else f"within {math.ceil(100 * slower - 1e-9)}% of the fastest"
        )
        which += f"{when}," if (when := self._when_it_ended()) else ""
        how = "timed here" if chosen.measured else "estimated from the chip's rates"
        plans = f"{len(others) + 1} plans" if others else "1 plan"
        return (
            f"{which} of {plans} compared ({format_seconds(chosen.seconds)} a step, {how});"
            f" {self.problem.recipe} has a peak of {format_bytes(chosen.peak)} in the phase '{chosen.ledger.phase}'"
        )

    def _when_it_ended(self) -> str:
        """Returns how the search ended, as the end of a phrase; empty if it had compared everything."""
        if not self.ended_early:
            return ""
        return (
            f" found {'before planning was interrupted' if self.interrupted else 'within the time limit of planning'}"
        )
