"""The fastest plan that fits: levers tried from the cheapest in time, the compiler asked for the bytes.

Temporaries grow almost linearly with the micro-batch, so two compiles per combination of the other levers give the
largest micro-batch that fits, and a third confirms the one that is chosen. Slower combinations are compiled only
where the faster ones do not fit well. Over several devices the state is held whole by each, and split among all of
them (`fsdp`) only where that is too much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

from plimsoll.errors import BudgetError, PlimsollError
from plimsoll.levers.registry import in_words
from plimsoll.planned import Ledger, Plan, Planned
from plimsoll.planner.candidates import NEAR, Candidate, alternative, kind, preferred, same_step, smaller
from plimsoll.planner.clock import Clock
from plimsoll.planner.combinations import (
    combinations,
    micro_batches,
    require_moved,
    require_narrower,
    storages,
    unmovable,
)
from plimsoll.planner.estimate import interpolated, ledger, sample
from plimsoll.planner.other_budgets import other_budgets
from plimsoll.planner.refusal import PROCESSES_DIFFER, refusal
from plimsoll.planner.speed import host_bytes, range_of, scaling, step_seconds
from plimsoll.planner.types import Analysis, Compiler, DoesNotCompile, Problem, Rates, Rehearsal, Static
from plimsoll.types import Storage
from plimsoll.units import format_bytes, format_seconds

SLOWED = 1.15
"""A combination whose best fitting plan is this much slower than its unconstrained best sends us to the next."""
FOLLOWING = 8
"""Times the largest micro-batch that fits: up to there is timed what would be gained by a larger one."""
NEARLY = 1.15
"""A peak estimated at so much of the budget is compiled to be sure."""

OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
"""XLA's word in the refusal of a compiler or an allocator that lacks the memory."""
GRADIENT_BYTES = 4
"""Bytes of a parameter's gradient, whatever its own are."""
CONFIRMED = 4
"""Plans compiled for themselves, at most, to find the smallest: each takes some seconds."""

Say = Callable[[str], None]
Levers = Mapping[str, Any]
"""A combination: a value for every lever but those chosen by themselves."""
NO_STEP = Analysis(argument_bytes=0, output_bytes=0, alias_bytes=0, temp_bytes=0, flops=0.0)
"""Analysis of a process that does not train."""


def search(problem: Problem, compiler: Compiler, say: Say) -> Planned:
    """Returns the fastest plan that fits. Raises BudgetError, with the floor and what would fit, if none does."""
    try:
        try:
            return _Search(problem, compiler, say).run()
        except BudgetError as refused:
            raise _with_a_way_out(refused, problem, compiler, say) from None
    except DoesNotCompile as failure:  # not on one plan, but on what all of them need
        raise PlimsollError(
            f"{problem.recipe} cannot be planned for {problem.chip}: {failure}. `plimsoll doctor` says whether this"
            " machine is ready"
        ) from None


def _with_a_way_out(refused: BudgetError, problem: Problem, compiler: Compiler, say: Say) -> BudgetError:
    """Returns the refusal with the one pin that, set free, would make a plan fit, and the value it would have."""
    pins = problem.pins if refused.floor_bytes is not None and problem.pinned_by is None else {}
    if not pins:
        return refused
    alone = _Search(replace(problem, pins={}, measure=False), compiler, say).without_a_step()
    if alone is not None and alone.needed_bytes > PROCESSES_DIFFER * problem.budget_bytes:
        return refused  # whichever levers are on
    ways = []
    for pin in pins:
        others = {name: value for name, value in pins.items() if name != pin}
        try:
            free = _Search(replace(problem, pins=others, measure=False), compiler, say).run()
        except BudgetError:
            continue
        ways.append((pin, getattr(free.plan, pin), free.ledger.needed_bytes))
    if not ways:
        return refused
    pin, value, peak = max(ways, key=lambda way: way[2])
    flag = pin.replace("_", "-")
    return BudgetError(
        f"{refused}\n  the smallest change of what is pinned: --{flag} {value}, which needs {format_bytes(peak)}",
        budget_bytes=refused.budget_bytes,
        floor_bytes=refused.floor_bytes,
    )


class _Search:
    def __init__(self, problem: Problem, compiler: Compiler, say: Say) -> None:
        self.problem, self.compiler, self.say = problem, compiler, say
        self.static_of: Callable[[int, Storage], Static] = cache(compiler.static)
        """Bytes of the state, from the number of devices that share a copy and how it is stored."""
        self.static = self.static_of(1, Storage())
        require_moved(problem, self.static)
        require_narrower(problem, partial(self.static_of, 1))
        self.rates: Rates = compiler.rates()
        self.micros = micro_batches(problem)
        self.usual = storages(problem, self.rates)[0]
        every = combinations(problem, self.rates)
        self.combinations = [levers for levers in every if not unmovable(self.static, levers["offload"])]
        self.analyses: dict[Plan, Analysis] = {}
        self.failed: dict[Plan, str] = {}
        """Plans that do not compile, and why."""
        self.too_large: set[Plan] = set()
        """Estimated to fit, and found not to."""
        self.failures: list[str] = []
        self.clock = Clock(compiler, say, self.failures, must_run=problem.platform != "cpu")
        self.rehearsals: dict[tuple[Any, ...], Rehearsal] = {}
        """The latest of each kind."""

    def run(self) -> Planned:
        alone = self.without_a_step()
        if alone is not None and not alone.fits:  # by process and state: nothing but the smallest is compiled
            ends = self._ends([])
            if not any(candidate.ledger.fits for candidate in ends):
                least = min(ends, key=lambda candidate: candidate.peak, default=None)
                raise refusal(self.problem, self.static, least, self.failures)

        candidates: list[Candidate] = []
        for tried in self._rounds():
            other_precision = candidates and tried[0]["precision"] != candidates[0].plan.precision
            if other_precision and (planned := self._chosen(candidates)):
                return planned  # rounding would gain no time here, only bytes, and those are enough
            before = len(candidates)
            for levers in tried:
                if self._is_worth_a_compile(levers, candidates):
                    candidates += self._candidates(levers)
            of_round = candidates[before:]
            if self._good_enough(of_round) and (planned := self._chosen(candidates, while_good=of_round)):
                return planned
        if planned := self._chosen(candidates):
            return planned

        candidates = [candidate for candidate in candidates if self.clock.may_run(candidate)]
        least = self._least(candidates)
        if least is None or not least.ledger.fits:
            smallest = [candidate for candidate in (least, *self._ends(candidates)) if candidate is not None]
            least = min(smallest, key=lambda candidate: candidate.peak, default=None)
        if least is not None and least.ledger.fits:  # it had been estimated too high
            return self._planned(least, [least], fitting=1, candidates=[*candidates, least])
        raise refusal(self.problem, self.static, least, self.failures)

    def _rounds(self) -> Iterable[list[Levers]]:
        """Returns combinations in groups that are compiled together, for the clock to choose from: by loss chunk.

        By the rates a loss in chunks is never faster; on a CPU, whose cache holds a chunk, it may be by a fifth.
        """
        rounds: dict[tuple[Any, ...], list[Levers]] = {}
        timed = "loss_chunk" if self.problem.measure else None
        for levers in self.combinations:
            key = tuple(value for lever, value in levers.items() if lever != timed)
            rounds.setdefault(key, []).append(levers)
        return rounds.values()

    def _is_worth_a_compile(self, levers: Levers, candidates: list[Candidate]) -> bool:
        if self._held(self._plan(levers, self.micros[0])) > self.problem.budget_bytes:
            return False
        fitting = [candidate.seconds for candidate in candidates if candidate.ledger.fits]
        if levers["offload"] != "none" and fitting:  # can it beat what fits, if only its transfers slowed it down?
            plan = self._plan(levers, self.micros[-1])
            fetching = host_bytes(plan, self._static(plan)) / self.rates.host_link_bytes
            if min(fitting) <= min(candidate.seconds for candidate in candidates) + fetching:
                return False
        return self._may_fit(levers, candidates)

    def _may_fit(self, levers: Levers, candidates: list[Candidate]) -> bool:
        """Returns whether an update layer by layer is worth a compile: it saves the bytes of one gradient."""
        if not levers["layerwise"]:
            return True
        ordinary = self._plan({**levers, "layerwise": 0}, self.problem.effective_batch)
        alike = [c.peak for c in candidates if same_step(c.plan) == same_step(ordinary) and not c.bound]
        least = min(alike, default=0) - GRADIENT_BYTES * self._static(ordinary).parameters
        return least <= NEARLY * self.problem.budget_bytes

    def _good_enough(self, candidates: list[Candidate]) -> bool:
        """Returns whether these levers fit without much loss: by the rates and, where plans are timed, by the clock.

        The rates know badly how slow a small micro-batch is; the next ones, which do not fit, show it.
        """
        fitting = self._fitting(candidates)
        steps = {same_step(candidate.plan) for candidate in fitting}
        beyond = [candidate for candidate in candidates if same_step(candidate.plan) not in steps]
        if not fitting:
            return False
        fastest = min(candidate.seconds for candidate in candidates)
        if min(candidate.seconds for candidate in fitting) > SLOWED * fastest:
            return False
        if not self.problem.measure or not beyond:
            return True
        largest = max(fitting, key=lambda candidate: candidate.plan.micro_batch)
        larger = [each for each in beyond if each.plan.micro_batch <= FOLLOWING * largest.plan.micro_batch]
        larger = [each for each in larger or beyond if each.peak <= self.problem.available_bytes]  # to be timed here
        ends = sorted(larger, key=lambda candidate: candidate.plan.micro_batch)
        timed = self.clock.timed([largest, *ends[:1], *ends[1:][-1:]]) if ends else []
        if not self.clock.may_run(largest):
            return False
        return not timed or timed[0].seconds <= NEAR * min(candidate.seconds for candidate in timed)

    def _static(self, plan: Plan) -> Static:
        return self.static_of(plan.fsdp, plan.storage)

    def _held(self, plan: Plan) -> int:
        """Returns the bytes of the state that a device holds."""
        static = self._static(plan)
        return static.state_bytes - static.host_bytes(plan.offload)

    def _micros(self, levers: Levers) -> list[int]:
        return [self.problem.effective_batch] if levers["layerwise"] else self.micros

    def without_a_step(self) -> Ledger | None:
        """Returns the ledger of a process with the smallest state and no step. None where that does not compile."""
        first = sample(self._micros(self.combinations[0]))[0]  # the one that is compiled next, too
        try:
            rehearsal = self._any_rehearsal(self._smallest(self.combinations[0], first))
        except DoesNotCompile as problem:
            self.failures.append(str(problem))
            return None
        plans = [self._smallest(levers, first) for levers in self.combinations]
        return self._price(min(plans, key=self._held), NO_STEP, rehearsal=rehearsal)

    def _smallest(self, levers: Levers, micro: int) -> Plan:
        """Returns the smallest variant of this plan: synchronous saves and the lowest prefetch depth."""
        least = {"async_save": self.problem.pins.get("async_save", False), "prefetch": min(self.problem.host_bytes)}
        return replace(self._plan(levers, micro), **least)

    def _ends(self, candidates: list[Candidate]) -> list[Candidate]:
        """Returns the smallest plans, compiled: with a whole gradient, and with updates layer by layer."""
        last = {levers["layerwise"]: levers for levers in self.combinations if self._may_fit(levers, candidates)}
        plans = [self._smallest(levers, self._micros(levers)[0]) for levers in last.values()]
        empty = self._price(plans[0], NO_STEP)
        ends = (self._confirm(Candidate(plan, empty, 0.0)) for plan in plans)
        return [end for end in ends if end is not None and self.clock.may_run(end)]

    def _chosen(self, candidates: list[Candidate], *, while_good: list[Candidate] | None = None) -> Planned | None:
        """Confirms candidates from fastest to slowest and returns the first that still fits.

        Returns None if none does, or if `while_good` stopped being good enough, so that the search should continue.
        """
        while fitting := self._fitting(candidates):
            ranked = self.clock.ranked(fitting) if self.problem.measure else fitting
            if not ranked:
                return None
            best = preferred(ranked)
            confirmed = self._confirm(best)
            if confirmed is not None and confirmed.ledger.fits:
                return self._planned(confirmed, ranked, fitting=len(fitting), candidates=candidates)
            self.too_large.add(same_step(best.plan))
            if while_good is not None and not self._good_enough(while_good):
                return None
        return None

    def _fitting(self, candidates: list[Candidate]) -> list[Candidate]:
        """Returns the candidates that fit, the fastest first."""
        untried = [each for each in candidates if same_step(each.plan) not in self.too_large]
        untried = [self._repriced(each) for each in untried if self.clock.may_run(each)]
        return sorted((each for each in untried if each.ledger.fits), key=lambda candidate: candidate.seconds)

    def _repriced(self, candidate: Candidate) -> Candidate:
        """Returns the candidate priced with the latest rehearsal of its kind."""
        rehearsal = self.rehearsals.get(kind(candidate.plan))
        if rehearsal is None or candidate.analysis is None:
            return candidate
        again = self._candidate(candidate.plan, candidate.analysis, rehearsal)
        return replace(candidate, plan=again.plan, ledger=again.ledger)

    def _least(self, candidates: list[Candidate]) -> Candidate | None:
        """Returns the smallest candidate, compiled for itself: a refusal promises that so much memory is enough."""
        estimated, sure = list(candidates), []
        while estimated and len(sure) < CONFIRMED:
            smallest, *estimated = sorted(map(self._repriced, estimated), key=lambda candidate: candidate.peak)
            # Its process may be lighter than the one that was rehearsed instead, where its kind was not.
            weights = [rehearsal.process_bytes for rehearsal in self.rehearsals.values()]
            unsure = 0 if kind(smallest.plan) in self.rehearsals else max(weights) - min(weights)
            if any(candidate.peak <= smallest.peak - unsure for candidate in sure):
                break
            confirmed = self._confirm(smallest)
            sure += [] if confirmed is None else [confirmed]
        return min(sure, key=lambda candidate: candidate.peak, default=None)

    def _candidates(self, levers: Levers) -> list[Candidate]:
        """Returns a candidate for every micro-batch under these levers: two compiled, the others interpolated.

        The larger is compiled only where the smaller fits: it could only say how far over the budget it is. Besides,
        the first that narrowly misses the budget by interpolation is compiled: that is not so exact.
        """
        compiled: dict[int, Analysis] = {}
        micros = self._micros(levers)
        for sampled in sample(micros):
            micro, analysis = self._tried_near(levers, self._worth_sampling(compiled, levers, sampled), micros)
            if analysis is not None:
                compiled[micro] = analysis
                if not self._interpolated(compiled, levers, micro).ledger.fits:
                    break
        smallest = micros[0]
        if not compiled and smallest not in sample(micros) and (analysis := self._tried(levers, smallest)):
            compiled[smallest] = analysis
        if not compiled:
            return []
        candidates = {micro: self._interpolated(compiled, levers, micro) for micro in micros}
        border = next((micro for micro in micros if not candidates[micro].ledger.fits), None)
        if border is None or border in compiled or candidates[border].peak > NEARLY * self.problem.budget_bytes:
            return list(candidates.values())
        if analysis := self._tried(levers, border):
            if len(compiled) == 1:  # now there is a line
                compiled[border] = analysis
                return [self._interpolated(compiled, levers, micro) for micro in micros]
            candidates[border] = self._interpolated({border: analysis}, levers, border)
        return list(candidates.values())

    def _interpolated(self, compiled: Mapping[int, Analysis], levers: Levers, micro: int) -> Candidate:
        analysis = compiled.get(micro) or interpolated(micro, compiled)
        candidate = self._candidate(self._plan(levers, micro), analysis)
        return replace(candidate, bound=len(compiled) == 1 and micro not in compiled)

    def _tried_near(self, levers: Levers, micro: int, micros: list[int]) -> tuple[int, Analysis | None]:
        """Returns a micro-batch and its analysis; that of one next to it, where it does not compile.

        A compiler that has no configuration for one shape often has one for the next; if it lacks memory, it has none.
        """
        at = micros.index(micro)
        for near in (micro, *micros[at + 1 : at + 2], *micros[max(0, at - 1) : at]):
            if analysis := self._tried(levers, near):
                return near, analysis
            if OUT_OF_MEMORY in self.failed.get(same_step(self._plan(levers, near)), OUT_OF_MEMORY):
                break
        return micro, None

    def _worth_sampling(self, compiled: Mapping[int, Analysis], levers: Levers, micro: int) -> int:
        """Returns the micro-batch to compile next. For a GPU, after the first: the largest that fits, if it is larger.

        A GPU is fastest there, and neither times nor bytes are sure far beyond what was compiled. In proportion to
        the first, bytes are a bound.
        """
        if self.problem.platform != "cuda" or not compiled:
            return micro
        alone = {each: self._interpolated(compiled, levers, each) for each in self._micros(levers)}
        return max([micro, *(each for each in alone if alone[each].ledger.fits)])

    def _tried(self, levers: Levers, micro: int) -> Analysis | None:
        """Returns the analysis with the state stored most simply: fewer bits hardly change the temporaries.

        The chosen plan is compiled for itself.
        """
        usual = self._plan({**levers, **self.usual}, micro)
        if self._held(usual) <= self.problem.budget_bytes and (analysis := self._compiled(usual)):
            return analysis
        plan = self._plan(levers, micro)
        return self._compiled(plan) if plan != usual else None

    def _compiled(self, plan: Plan) -> Analysis | None:
        """Returns the analysis of a plan; None where it does not compile, which is tried once."""
        if same_step(plan) in self.failed:
            return None
        tried = f"micro-batch {plan.micro_batch}, {in_words(plan.levers)}"
        if same_step(plan) not in self.analyses:
            self.say(f"{self.compiler.doing} {tried}")
        try:
            return self._analyse(plan)
        except DoesNotCompile as problem:
            self.failures.append(f"{tried}: {problem}")
            self.failed[same_step(plan)] = str(problem)
            return None

    def _analyse(self, plan: Plan) -> Analysis:
        key = same_step(plan)
        if key not in self.analyses:
            self.analyses[key] = self.compiler.analyse(key)
        return self.analyses[key]

    def _candidate(self, plan: Plan, analysis: Analysis, rehearsal: Rehearsal | None = None) -> Candidate:
        """Returns the candidate, with synchronous saves and then a lower prefetch depth if it needs them to fit."""
        problem = self.problem
        rehearsal = rehearsal or self._any_rehearsal(plan)
        book = self._price(plan, analysis, rehearsal=rehearsal)
        for variant in smaller(plan, problem):
            if book.fits:
                break
            plan, book = variant, self._price(variant, analysis, rehearsal=rehearsal)
        running = max(peak for phase, peak in book.phases.items() if phase != "load") + book.spare_bytes
        fits_once_loaded = book.host is None and running <= problem.budget_bytes
        if not book.fits and fits_once_loaded and kind(plan) not in self.rehearsals:
            try:
                self._rehearse(plan)
            except DoesNotCompile as failure:
                self.failures.append(str(failure))
                self.rehearsals[kind(plan)] = rehearsal  # not tried again for every micro-batch
            return self._candidate(plan, analysis)
        shared = problem.devices // problem.hosts if problem.platform == "cpu" else 1  # its cores: no more of them
        seconds = step_seconds(plan, analysis, self._static(plan), self.rates, devices=problem.devices, sharing=shared)
        return Candidate(plan, book, seconds, analysis)

    def _price(
        self, plan: Plan, analysis: Analysis, problem: Problem | None = None, *, rehearsal: Rehearsal | None = None
    ) -> Ledger:
        """Returns the ledger of a step that was analysed. By default for this problem, with any rehearsal there is."""
        rehearsal = rehearsal or self._any_rehearsal(plan)
        return ledger(plan, problem or self.problem, static=self._static(plan), analysis=analysis, rehearsal=rehearsal)

    def _any_rehearsal(self, plan: Plan) -> Rehearsal:
        """Returns the rehearsal of this kind of plan, or any: the process hardly depends on the plan."""
        if not self.rehearsals:
            self._rehearse(plan)
        return self.rehearsals.get(kind(plan)) or next(iter(self.rehearsals.values()))

    def _rehearse(self, plan: Plan) -> Rehearsal:
        self.say("rehearsing the training process")
        rehearsal = self.rehearsals[kind(plan)] = self.compiler.rehearse(plan)
        return rehearsal

    def _confirm(self, best: Candidate) -> Candidate | None:
        """Returns the candidate compiled and rehearsed for itself; None where it does not compile."""
        self.say(f"confirming micro-batch {best.plan.micro_batch}, {in_words(best.plan.levers)}")
        try:
            analysis = self._analyse(best.plan)
            rehearsal = self._rehearse(replace(best.plan, async_save=True))
        except DoesNotCompile as problem:
            self.failures.append(str(problem))
            self.failed[same_step(best.plan)] = str(problem)
            return None
        again = self._candidate(best.plan, analysis, rehearsal)
        return replace(again, seconds=best.seconds if best.measured else again.seconds, measured=best.measured)

    def _plan(self, levers: Levers, micro: int) -> Plan:
        pins = self.problem.pins
        return Plan.from_dict(
            {
                "chip": self.problem.chip,
                "micro_batch": micro,
                "accumulation": self.problem.effective_batch // micro,
                "devices": self.problem.devices,
                "prefetch": pins.get("prefetch", max(self.problem.host_bytes)),
                "async_save": pins.get("async_save", True),
                "pinned": sorted(pins),
                **levers,
            }
        )

    def _not_compiled(self) -> str:
        """Returns how many plans did not compile, for other reasons than memory, in a sentence; empty if none."""
        failed = {plan: why for plan, why in self.failed.items() if OUT_OF_MEMORY not in why}
        if not failed:
            return ""
        micros = ", ".join(str(micro) for micro in sorted({plan.micro_batch for plan in failed}))
        tried = len(self.failed) + len(self.analyses.keys() - self.failed.keys())
        return (
            f"{len(failed)} of {tried} plans did not compile, the fastest may be among them: micro-batch {micros}"
            f" ({next(iter(failed.values()))[:200]})"
        )

    def _planned(
        self, chosen: Candidate, ranked: list[Candidate], *, fitting: int, candidates: list[Candidate]
    ) -> Planned:
        """Returns the result of the search. `ranked` are candidates that fit and whose times can be compared."""
        problem, analysis = self.problem, self._analyse(chosen.plan)
        others = [c for c in ranked if replace(c.plan, async_save=True) != replace(chosen.plan, async_save=True)]
        others.sort(key=lambda candidate: candidate.seconds)
        source = "measured" if chosen.measured else "kernels" if analysis.kernel_seconds else "roofline"
        how = "timed here" if chosen.measured else "by the chip's rates"
        fastest = min(candidate.seconds for candidate in [chosen, *ranked])
        which = "with larger micro-batches," if chosen.by_estimate else "and smaller,"
        which = "the fastest" if chosen.seconds <= fastest else f"within {NEAR - 1:.0%} of the fastest, {which}"
        reason = (
            f"{which} of {fitting} plans that fit ({format_seconds(chosen.seconds)} a step, {how});"
            f" {problem.recipe} has a peak of {format_bytes(chosen.peak)} in the phase '{chosen.ledger.phase}'"
        )
        several = problem.platform != "cpu" and problem.devices > 1  # those of a CPU share what it has
        of_text = problem.rate_unit == "tokens"
        return Planned(
            plan=chosen.plan,
            ledger=chosen.ledger,
            recipe=problem.recipe,
            parameters=self.static.parameters,
            step_seconds=chosen.seconds,
            step_seconds_source=source,
            step_seconds_range=range_of(chosen.seconds) if source == "kernels" else None,
            step_flops=analysis.flops,
            largest_buffers=analysis.largest,
            chip_flops=self.rates.flops[chosen.plan.precision],
            tokens_per_step=problem.effective_batch * problem.rate_per_example if of_text else None,
            examples_per_step=problem.effective_batch,
            scaling=scaling(chosen.plan, analysis, self._static(chosen.plan), self.rates) if several else (),
            compiles=self.compiler.compiles,
            left_out=tuple(dict.fromkeys(self.failures)),
            not_compiled=self._not_compiled(),
            devices=problem.devices,
            hosts=problem.hosts,
            reason=reason,
            other_budgets=other_budgets(problem, candidates, chosen, self._price),
            alternatives=tuple(alternative(candidate, chosen) for candidate in others[:3]),
        )
