"""Bytes and seconds of a candidate: what is exact of them, and what is believed of the rest."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from plimsoll.levers.lever import CLASSES
from plimsoll.planned import Ledger, Plan
from plimsoll.planner.belief import Beliefs, Interval, exactly, with_temporaries
from plimsoll.planner.candidates import NEAR, Candidate, kind
from plimsoll.planner.estimate import interpolated, ledger
from plimsoll.planner.space import Combination, StaticOf, smaller
from plimsoll.planner.speed import step_seconds
from plimsoll.planner.types import Analysis, Problem, Rates, Rehearsal
from plimsoll.types import Storage
from plimsoll.units import MIB

USUAL = Rehearsal(process_bytes=200 * MIB, starting_bytes=0, init_temp_bytes=4 * MIB, evaluate_temp_bytes=4 * MIB)
"""A training process, before one of this recipe was rehearsed or weighed."""
USUAL_SPREAD = 70 * MIB
"""By how much it may be less, or more. No budget is refused before a process was rehearsed: the smallest plan is."""
LOADED_BYTES, LOADED_SPREAD = 105 * MIB, 30 * MIB
"""What a process takes to load its functions, beyond its imports, and by how much that may be off: of five recipes 94
to 112 MiB were seen (notes, "A rehearsal beside its compiles")."""
KINDS_DIFFER = 0.04
"""Share of a process by which one with other levers may weigh more or less: it was less than 1 % of `code`'s. Many
unrolled layers weigh up to 15 % more, which is seen when one is rehearsed."""

ROUNDED = 1 << 15
"""Bytes by which room for temporaries may be taken to be more than it is: what is compiled and rehearsed is exact."""


@dataclass(frozen=True)
class View:
    """A candidate as it is believed to be now."""

    combination: Combination
    micro: int
    fits: float
    """How likely it fits."""
    cost: Interval
    """Seconds of a step, weighed by class of numerics and share of the budget: the search looks for the least."""

    @property
    def step(self) -> Plan:
        return self.combination.steps[self.micro]


class Prices:
    """Prices of one search: problem, rates, state and rehearsals so far, beside the beliefs."""

    def __init__(self, problem: Problem, rates: Rates, static_of: StaticOf, beliefs: Beliefs) -> None:
        self.problem, self.rates, self.static_of, self.beliefs = problem, rates, static_of, beliefs
        self.rehearsed: dict[tuple[Combination, int], Rehearsal] = {}
        """Of each candidate that was rehearsed for itself."""
        self.processes: dict[tuple[Any, ...], Rehearsal] = {}
        """The latest of each kind."""
        self.weighs_processes = problem.platform == "cpu" or problem.host_budget_bytes is not None
        """Whether a process counts in a budget that is limited."""
        self.took: dict[tuple[Combination, int], float] = {}
        """Seconds of a step, by the clock or by the rates of what was compiled."""
        self._room: dict[object, float] = {}
        self._fastest: dict[Combination, float] = {}
        self._kernels_of_a_micro_batch: dict[Combination, float] = {}

    def learn_rehearsal(self, combination: Combination, micro: int, rehearsal: Rehearsal) -> None:
        """Learns what the process of a candidate weighs, and with it those of its kind."""
        self.rehearsed[combination, micro] = rehearsal
        alike = kind(combination.any_plan)
        self.processes.pop(alike, None)
        self.processes[alike] = rehearsal

    def learned(self) -> None:
        """Forgets what followed from less."""
        self.beliefs.learned()
        self._room.clear()
        self._fastest.clear()

    def views(self) -> Iterator[View]:
        """Yields every candidate that may fit."""
        for combination in self.beliefs.known:
            for micro in combination.plans:
                fits = self.fits(combination, micro)
                if fits > 0:
                    yield View(combination, micro, fits, self.cost(combination, micro))

    def fits(self, combination: Combination, micro: int) -> float:
        """Returns how likely the candidate fits; exactly 0 or 1 once it was compiled and rehearsed."""
        known = self.beliefs.known[combination]
        if micro in known.compiled and (combination, micro) in self.rehearsed:
            return float(self.priced(combination, micro, known.compiled[micro]).ledger.fits)
        room, spread = self._room_for(combination)
        low, likely, high = self.beliefs.temporaries(combination, micro)
        return Interval(low - spread, likely, high + spread).share_below(room)

    def cost(self, combination: Combination, micro: int) -> Interval:
        """Returns the seconds of a step, weighed by what else a plan is preferred for."""
        plan = combination.plans[micro]
        cost = self.seconds(combination, micro).times(NEAR ** CLASSES.index(plan.numerics))
        if self.problem.platform != "cpu" and not self.problem.measure:
            return cost  # what a card loses by small kernels is known worst: there bytes that are free count nothing
        room = self._room_for(combination)[0]
        needed = self.problem.budget_bytes - room + self.beliefs.temporaries(combination, micro).likely
        return cost.times(1 + (NEAR - 1) * min(1.0, max(0.0, needed / self.problem.budget_bytes)))

    def seconds(self, combination: Combination, micro: int) -> Interval:
        """Returns the seconds of a step: by the clock where plans are timed, else by the rates of what was compiled."""
        known = self.beliefs.known[combination]
        if not known.traced:
            return self._no_faster_than_parents(combination)
        if micro in known.compiled and not self.problem.measure:
            return exactly(self.by_rates(combination, micro, known.compiled[micro]))
        slower = self.beliefs.slower(combination, micro, timed=self.problem.measure)
        return slower.times(self._by_trace(combination, micro))

    def learn_seconds(self, combination: Combination, micro: int, seconds: float) -> None:
        """Learns how long a step takes, by the clock or by the rates of what was compiled."""
        self.took[combination, micro] = seconds
        self.beliefs.learned()  # what has been compiled since
        self._kernels_of_a_micro_batch.clear()
        for (each, size), took in self.took.items():
            self.beliefs.known[each].slower[size] = took / self._by_trace(each, size)

    def _by_trace(self, combination: Combination, micro: int) -> float:
        traced = interpolated(micro, self.beliefs.known[combination].traced)
        if traced.kernels and (kernels := self._kernels(combination)):
            traced = replace(traced, kernels=kernels * combination.plans[micro].accumulation)
        likely = self.beliefs.temporaries(combination, micro).likely
        return self.by_rates(combination, micro, with_temporaries(traced, likely) if likely < math.inf else traced)

    def _kernels(self, combination: Combination) -> float:
        """Returns the kernels of a micro-batch as far as they were compiled: of the same levers, else of any; or 0."""
        if combination not in self._kernels_of_a_micro_batch:
            counts: list[float] = []
            for each in (combination,) if self.beliefs.known[combination].compiled else self.beliefs.known:
                compiled = self.beliefs.known[each].compiled
                counts += [found.kernels / each.plans[micro].accumulation for micro, found in compiled.items()]
            self._kernels_of_a_micro_batch[combination] = statistics.median(counts) if counts else 0.0
        return self._kernels_of_a_micro_batch[combination]

    def _no_faster_than_parents(self, combination: Combination) -> Interval:
        """Returns the seconds of what nobody traced: at best those of the slowest parent's fastest, less its hope."""
        if combination not in self._fastest:
            fastest = 0.0
            for parent in combination.parents:
                fastest = max(fastest, min(self.seconds(parent, micro).likely for micro in parent.plans))
            self._fastest[combination] = fastest * (combination.hope if self.problem.measure else 1.0)
        fastest = self._fastest[combination]
        return Interval(0.95 * fastest, 1.1 * fastest, 1.4 * fastest)

    def by_rates(self, combination: Combination, micro: int, analysis: Analysis) -> float:
        """Returns the seconds of a step by the rates, as this analysis has it."""
        plan, problem = combination.plans[micro], self.problem
        shared = problem.devices // problem.hosts if problem.platform == "cpu" else 1  # its cores: no more of them
        static = self.static_of(plan.fsdp, plan.storage)
        return step_seconds(plan, analysis, static, self.rates, devices=problem.devices, sharing=shared)

    def candidate(self, combination: Combination, micro: int, *, smallest: bool = False) -> Candidate:
        """Returns the candidate with its likely price, of a combination that was traced or compiled.

        It is the first of its variants that fits, or the `smallest`.
        """
        known = self.beliefs.known[combination]
        analysis = known.compiled.get(micro)
        if analysis is None:
            likely = self.beliefs.temporaries(combination, micro).likely
            analysis = with_temporaries(interpolated(micro, known.traced), likely)
        priced = self.priced(combination, micro, analysis, smallest=smallest)
        measured = self.problem.measure and micro in known.slower
        return replace(priced, seconds=self.seconds(combination, micro).likely, measured=measured)

    def needed(self, combination: Combination, micro: int) -> Interval:
        """Returns the smallest budget that the candidate fits in, to be held against others' of now."""
        known = self.beliefs.known[combination]
        rehearsal, spread = self._rehearsal(combination, micro)
        spread = spread if self.processes else 0  # what is off for all alike
        *_, smallest = smaller(combination.plans[micro], self.problem)

        def of(analysis: Analysis) -> int:
            return self._ledger(smallest, analysis, rehearsal, self.problem).needed_bytes

        if micro in known.compiled:
            low = likely = high = of(known.compiled[micro])
        else:
            low, likely, high = (
                of(with_temporaries(NO_STEP, each)) if each < math.inf else math.inf
                for each in self.beliefs.temporaries(combination, micro)
            )
        return Interval(max(0.0, low - spread), likely, high + spread)

    def priced(
        self,
        combination: Combination,
        micro: int,
        analysis: Analysis,
        problem: Problem | None = None,
        *,
        smallest: bool = False,
    ) -> Candidate:
        """Returns the first variant of the plan that fits, else the smallest, without its seconds."""
        problem = problem or self.problem
        rehearsal, _ = self._rehearsal(combination, micro)
        found = []
        for variant in smaller(combination.plans[micro], problem):
            found.append(Candidate(variant, self._ledger(variant, analysis, rehearsal, problem), 0.0, analysis))
            if found[-1].ledger.fits and not smallest:
                break
        return found[-1]

    def _ledger(self, plan: Plan, analysis: Analysis, rehearsal: Rehearsal, problem: Problem) -> Ledger:
        static = self.static_of(plan.fsdp, plan.storage)
        return ledger(plan, problem, static=static, analysis=analysis, rehearsal=rehearsal)

    def _rehearsal(self, combination: Combination, micro: int | None = None) -> tuple[Rehearsal, float]:
        """Returns the candidate's own rehearsal, else one of its kind, else any; and by how much it may differ.

        How a process is loaded depends on its kind: what another kind takes to start is not held against it. Nothing of
        a process lies in the memory of an accelerator.
        """
        if micro is not None and (own := self.rehearsed.get((combination, micro))) is not None:
            return own, 0
        if (alike := self.processes.get(kind(combination.any_plan))) is not None:
            return alike, 0
        latest = next(reversed(self.processes.values()), None)
        if latest is None:
            return self._before_any()
        spread = KINDS_DIFFER * latest.process_bytes if self.weighs_processes else 0
        return replace(latest, starting_bytes=0), spread

    def _before_any(self) -> tuple[Rehearsal, float]:
        """Returns what a process is taken to weigh before one was rehearsed, and by how much it may differ."""
        imported = self.static_of(1, Storage()).imported_bytes
        if not self.weighs_processes:
            return USUAL, 0
        if not imported:
            return USUAL, USUAL_SPREAD
        return replace(USUAL, process_bytes=imported + LOADED_BYTES), LOADED_SPREAD

    def _room_for(self, combination: Combination) -> tuple[float, float]:
        """Returns the most bytes that a step may need beyond its state, and what the process may weigh more."""
        plan = combination.any_plan
        rehearsal, spread = self._rehearsal(combination)
        key = plan.fsdp, plan.storage, plan.offload, plan.deterministic, kind(plan), rehearsal
        if key not in self._room:
            *_, smallest = smaller(plan, self.problem)

            def book(bytes_: int) -> Ledger:
                return self._ledger(smallest, with_temporaries(NO_STEP, bytes_), rehearsal, self.problem)

            nothing, low, high = book(0), 0, self.problem.budget_bytes
            while nothing.fits and high - low > ROUNDED:
                middle = (low + high) // 2
                low, high = (middle, high) if book(middle).fits else (low, middle)
            on_host = nothing.host is not None and not nothing.host.fits
            lacking = max(0, nothing.needed_bytes - self.problem.budget_bytes)
            self._room[key] = -math.inf if on_host else high - lacking if nothing.fits else -lacking
        return self._room[key], spread


NO_STEP = Analysis(argument_bytes=0, output_bytes=0, alias_bytes=0, temp_bytes=0, flops=0.0)
"""Analysis of a process that does not train."""
