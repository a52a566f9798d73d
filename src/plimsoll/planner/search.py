"""The fastest plan that fits: levers tried from the cheapest in time, the compiler asked for the bytes.

Temporaries grow almost linearly with the micro-batch, so two compiles per combination of the other levers give the
largest micro-batch that fits, and a third confirms the one that is chosen. Slower combinations are compiled only
where the faster ones do not fit well. Over several devices the state is held whole by each, and split among all of
them (`fsdp`) only where that is too much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from plimsoll.errors import BudgetError, PlimsollError
from plimsoll.levers.registry import in_words
from plimsoll.planned import Ledger, Plan, Planned, Scaled
from plimsoll.planner.candidates import NEAR, Candidate, alternative, kind, same_step
from plimsoll.planner.clock import Clock
from plimsoll.planner.combinations import combinations, micro_batches, require_narrower, storages
from plimsoll.planner.estimate import ledger
from plimsoll.planner.interpolation import interpolated, sample
from plimsoll.planner.offloading import moves, require_moved
from plimsoll.planner.other_budgets import other_budgets
from plimsoll.planner.refusal import PROCESSES_DIFFER, refusal
from plimsoll.planner.scaling import scaling
from plimsoll.planner.speed import host_bytes, step_seconds
from plimsoll.planner.types import Analysis, Compiler, DoesNotCompile, Problem, Rates, Rehearsal, Static
from plimsoll.types import Storage
from plimsoll.units import format_bytes, format_seconds

SLOWED = 1.15
"""A combination whose best fitting plan is this much slower than its unconstrained best sends us to the next."""
FOLLOWING = 8
"""Times the largest micro-batch that fits: up to there is timed what would be gained by a larger one."""
NEARLY = 1.15
"""A peak estimated at so much of the budget is compiled to be sure."""

GRADIENT_BYTES = 4
"""Of a parameter, whatever its own are."""
CONFIRMED = 4
"""Plans compiled for themselves, at most, to find the smallest: each takes some seconds."""

Say = Callable[[str], None]
NO_STEP = Analysis(argument_bytes=0, output_bytes=0, alias_bytes=0, temp_bytes=0, flops=0.0)
"""To price a process that does not train."""


def search(problem: Problem, compiler: Compiler, say: Say) -> Planned:
    """Raises BudgetError, with the floor and what would fit, if nothing does."""
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
    ways = []
    pins = problem.pins if refused.floor_bytes is not None and problem.pinned_by is None else {}
    if not pins or not _Search(replace(problem, pins={}, measure=False), compiler, say).may_hold_the_state():
        return refused
    for pin in pins:
        others = {name: value for name, value in problem.pins.items() if name != pin}
        try:
            free = _Search(replace(problem, pins=others, measure=False), compiler, say).run()
        except BudgetError:
            continue
        value = getattr(free.plan, pin)
        ways.append((pin, value, free.ledger.needed_bytes))
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
        self.static: Static = compiler.static()
        require_moved(problem, self.static)
        self.statics: dict[tuple[int, Storage], Static] = {(1, Storage()): self.static}
        require_narrower(problem, lambda storage: self._kept(1, storage))
        self.rates: Rates = compiler.rates()
        self.micros = micro_batches(problem)
        self.usual = storages(problem, self.rates)[0]
        self.analyses: dict[Plan, Analysis] = {}
        self.failed: set[Plan] = set()
        self.too_large: set[Plan] = set()
        """Estimated to fit, and found not to."""
        self.failures: list[str] = []
        self.clock = Clock(compiler, say, self.failures)
        self.rehearsals: dict[tuple[Any, ...], Rehearsal] = {}
        """The latest of each kind."""

    def run(self) -> Planned:
        self._require_room_for_the_state()
        found: list[Candidate] = []
        for tried in self._rounds():
            other_precision = found and tried[0]["precision"] != found[0].plan.precision
            if other_precision and (planned := self._chosen(found)):
                return planned  # rounding would gain no time here, only bytes, and those are enough
            before = len(found)
            for combination in tried:
                if self._is_worth_a_compile(combination, found):
                    found += self._candidates(combination)
            candidates = found[before:]
            if self._good_enough(candidates) and (planned := self._chosen(found, while_good=candidates)):
                return planned
        if planned := self._chosen(found):
            return planned
        least = self._least(found)
        if least is not None and least.fits:  # it had been estimated too high
            return self._planned(least, [least], fitting=1, found=[*found, least])
        sure = [one for one in (least, *self._ends(found)) if one is not None]
        least = min(sure, key=lambda one: one.peak, default=None)
        if least is not None and least.fits:  # what looked worse than it is
            return self._planned(least, [least], fitting=1, found=[*found, least])
        raise refusal(self.problem, self.static, least, self.failures)

    def _rounds(self) -> Iterable[list[Mapping[str, Any]]]:
        """Returns combinations in groups that are compiled together, for the clock to choose from: by loss chunk.

        By the rates a loss in chunks is never faster; on a CPU, whose cache holds a chunk, it may be by a fifth.
        """
        rounds: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
        for combination in self._combinations():
            timed = {"loss_chunk"} if self.problem.measure else set[str]()
            key = tuple(value for lever, value in combination.items() if lever not in timed)
            rounds.setdefault(key, []).append(combination)
        return rounds.values()

    def _is_worth_a_compile(self, combination: Mapping[str, Any], found: list[Candidate]) -> bool:
        return (
            self._has_room(combination)
            and not self._offload_is_slower(combination, found)
            and self._may_fit(combination, found)
        )

    def _good_enough(self, candidates: list[Candidate]) -> bool:
        """Returns whether these levers fit without much loss: by the rates and, where plans are timed, by the clock.

        The rates know badly how slow a small micro-batch is; the next ones, which do not fit, show it.
        """
        fitting = self._fitting(candidates)
        steps = {same_step(one.plan) for one in fitting}
        beyond = [one for one in candidates if same_step(one.plan) not in steps]
        if not fitting:
            return False
        fastest = min(candidate.seconds for candidate in candidates)
        if min(candidate.seconds for candidate in fitting) > SLOWED * fastest:
            return False
        if not self.problem.measure or not beyond:
            return True
        largest = max(fitting, key=lambda candidate: candidate.plan.micro_batch)
        larger = [one for one in beyond if one.plan.micro_batch <= FOLLOWING * largest.plan.micro_batch]
        larger = [one for one in larger or beyond if one.peak <= self.problem.available_bytes]  # to be timed here
        ends = sorted(larger, key=lambda candidate: candidate.plan.micro_batch)
        timed = self.clock.timed([largest, *ends[:1], *ends[1:][-1:]]) if ends else []
        return not timed or timed[0].seconds <= NEAR * min(one.seconds for one in timed)

    def _combinations(self) -> Iterator[dict[str, Any]]:
        """Yields combinations, without those whose offload would move nothing."""
        found = combinations(self.problem, self.rates)
        return (one for one in found if moves(self.static, one["offload"]))

    def _has_room(self, combination: Mapping[str, Any]) -> bool:
        """Returns whether a device holds its share of the state at all."""
        return self._held(self._plan(combination, self.micros[0])) <= self.problem.budget_bytes

    def _held(self, plan: Plan) -> int:
        """Returns the bytes of the state that a device holds."""
        static = self._static(plan)
        return static.state_bytes - static.host_bytes(plan.offload)

    def _offload_is_slower(self, combination: Mapping[str, Any], found: list[Candidate]) -> bool:
        """Returns whether a plan with offload cannot beat what fits, even if only its transfers slowed it down."""
        fits = [candidate.seconds for candidate in found if candidate.fits]
        if combination["offload"] == "none" or not fits:
            return False
        plan = self._plan(combination, self.micros[-1])
        fetching = host_bytes(plan, self._static(plan)) / self.rates.host_link_bytes
        return min(fits) <= min(candidate.seconds for candidate in found) + fetching

    def _may_fit(self, combination: Mapping[str, Any], found: list[Candidate]) -> bool:
        """Returns whether an update layer by layer is worth a compile: it saves the bytes of one gradient."""
        if not combination["layerwise"]:
            return True
        ordinary = self._plan({**combination, "layerwise": 0}, self.problem.effective_batch)
        alike = [c.peak for c in found if same_step(c.plan) == same_step(ordinary) and not c.bound]
        least = min(alike, default=0) - GRADIENT_BYTES * self._static(ordinary).parameters
        return least <= NEARLY * self.problem.budget_bytes

    def _micros(self, combination: Mapping[str, Any]) -> list[int]:
        return [self.problem.effective_batch] if combination["layerwise"] else self.micros

    def _static(self, plan: Plan) -> Static:
        return self._kept(plan.fsdp, plan.storage)

    def _kept(self, *key: Any) -> Static:
        """Returns the bytes of the state for `key`: devices that share a copy, and how it is stored."""
        if key not in self.statics:
            self.statics[key] = self.compiler.static(*key)
        return self.statics[key]

    def may_hold_the_state(self) -> bool:
        """Unless the process and its state, without a step, are clearly too much: a process's kinds differ by less."""
        alone = self._without_a_step()
        return alone is None or alone.needed_bytes <= PROCESSES_DIFFER * self.problem.budget_bytes

    def _without_a_step(self) -> Ledger | None:
        """Returns the ledger of a process with the smallest state and no step. None where that does not compile."""
        possible = list(self._combinations())
        first = sample(self._micros(possible[0]))[0]  # the one that is compiled next, too
        try:
            rehearsal = self._any_rehearsal(self._smallest(possible[0], first))
        except DoesNotCompile as problem:
            self.failures.append(str(problem))
            return None
        smallest = min((self._smallest(one, first) for one in possible), key=self._held)
        return self._ledger(smallest, NO_STEP, rehearsal)

    def _require_room_for_the_state(self) -> None:
        """Raises BudgetError where process and state alone are too much, before anything more is compiled."""
        alone = self._without_a_step()
        if alone is None or alone.fits:
            return
        ends = self._ends([])
        if not any(one.fits for one in ends):
            least = min(ends, key=lambda one: one.peak, default=None)
            raise refusal(self.problem, self.static, least, self.failures)

    def _smallest(self, combination: Mapping[str, Any], micro: int) -> Plan:
        """Returns the smallest variant of this plan: synchronous saves and the lowest prefetch depth."""
        least = {"async_save": self.problem.pins.get("async_save", False), "prefetch": min(self.problem.host_bytes)}
        return replace(self._plan(combination, micro), **least)

    def _ends(self, found: list[Candidate]) -> list[Candidate]:
        """Returns the smallest plans, compiled: with a whole gradient, and with updates layer by layer."""
        possible = [one for one in self._combinations() if self._may_fit(one, found)]
        last = {one["layerwise"]: one for one in possible}
        plans = [self._smallest(one, self._micros(one)[0]) for one in last.values()]
        empty = self._ledger(plans[0], NO_STEP, self._any_rehearsal(plans[0]))
        sure = (self._confirm(Candidate(plan, empty, 0.0, False)) for plan in plans)
        return [one for one in sure if one is not None]

    def _chosen(self, found: list[Candidate], *, while_good: list[Candidate] | None = None) -> Planned | None:
        """Confirms candidates from fastest to slowest and returns the first that still fits.

        Returns None if none does, or if `while_good` stopped being good enough, so that the search should continue.
        """
        while fitting := self._fitting(found):
            ranked = self.clock.ranked(fitting) if self.problem.measure else fitting
            best = self._best(ranked)
            confirmed = self._confirm(best)
            if confirmed is not None and confirmed.fits:
                return self._planned(confirmed, ranked, fitting=len(fitting), found=found)
            self.too_large.add(same_step(best.plan))
            if while_good is not None and not self._good_enough(while_good):
                return None
        return None

    def _fitting(self, found: list[Candidate]) -> list[Candidate]:
        """Returns the candidates that fit, the fastest first."""
        untried = [self._repriced(one) for one in found if same_step(one.plan) not in self.too_large]
        return sorted((one for one in untried if one.fits), key=lambda candidate: candidate.seconds)

    def _repriced(self, candidate: Candidate) -> Candidate:
        """Returns the candidate priced with the latest rehearsal of its kind."""
        rehearsal = self.rehearsals.get(kind(candidate.plan))
        if rehearsal is None or candidate.analysis is None:
            return candidate
        again = self._candidate(candidate.plan, candidate.analysis, confirmed=candidate.confirmed, rehearsal=rehearsal)
        return replace(candidate, plan=again.plan, ledger=again.ledger)

    def _least(self, found: list[Candidate]) -> Candidate | None:
        """Returns the smallest candidate, compiled for itself: a refusal promises that so much memory is enough."""
        estimated, sure = list(found), []
        while estimated and len(sure) < CONFIRMED:
            estimated = sorted(map(self._repriced, estimated), key=lambda candidate: candidate.peak)
            if any(candidate.peak <= estimated[0].peak - self._unsure(estimated[0].plan) for candidate in sure):
                break
            confirmed = self._confirm(estimated.pop(0))
            sure += [] if confirmed is None else [confirmed]
        return min(sure, key=lambda candidate: candidate.peak, default=None)

    def _unsure(self, plan: Plan) -> int:
        """Returns the bytes by which its process may be lighter than the one that was rehearsed instead."""
        weights = [rehearsal.process_bytes for rehearsal in self.rehearsals.values()]
        return 0 if kind(plan) in self.rehearsals else max(weights) - min(weights)

    def _candidates(self, combination: Mapping[str, Any]) -> list[Candidate]:
        """Returns a candidate for every micro-batch under these levers: two compiled, the others interpolated.

        The larger is compiled only where the smaller fits: it could only say how far over the budget it is.
        """
        compiled: dict[int, Analysis] = {}
        micros = self._micros(combination)
        for micro in sample(micros):
            if analysis := self._tried(combination, micro):
                compiled[micro] = analysis
                if not self._lying_on(compiled, combination, micro).fits:
                    break
        smallest = micros[0]
        if not compiled and smallest not in sample(micros) and (analysis := self._tried(combination, smallest)):
            compiled[smallest] = analysis
        if not compiled:
            return []
        candidates = {micro: self._lying_on(compiled, combination, micro) for micro in micros}
        border = self._border(list(candidates.values()))
        if border is None or not (analysis := self._tried(combination, border)):
            return list(candidates.values())
        if len(compiled) == 1:  # now there is a line
            compiled[border] = analysis
            return [self._lying_on(compiled, combination, micro) for micro in micros]
        candidates[border] = self._lying_on({border: analysis}, combination, border)
        return list(candidates.values())

    def _lying_on(self, compiled: Mapping[int, Analysis], combination: Mapping[str, Any], micro: int) -> Candidate:
        analysis = compiled.get(micro) or interpolated(micro, compiled)
        found = self._candidate(self._plan(combination, micro), analysis, confirmed=micro in compiled)
        return replace(found, bound=len(compiled) == 1 and micro not in compiled)

    def _border(self, candidates: list[Candidate]) -> int | None:
        """Returns the first micro-batch that narrowly misses the budget by interpolation, which is not that exact."""
        beyond = [candidate for candidate in candidates if not candidate.fits]
        first = min(beyond, key=lambda candidate: candidate.plan.micro_batch, default=None)
        if first is None or first.confirmed or first.peak > NEARLY * self.problem.budget_bytes:
            return None
        return first.plan.micro_batch

    def _tried(self, combination: Mapping[str, Any], micro: int) -> Analysis | None:
        """Returns the analysis with the state stored most simply: fewer bits hardly change the temporaries.

        The chosen plan is compiled for itself.
        """
        usual = self._plan({**combination, **self.usual}, micro)
        if self._held(usual) <= self.problem.budget_bytes and (found := self._compiled(usual)):
            return found
        plan = self._plan(combination, micro)
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
            self.failed.add(same_step(plan))
            return None

    def _candidate(
        self, plan: Plan, analysis: Analysis, *, confirmed: bool, rehearsal: Rehearsal | None = None
    ) -> Candidate:
        """Returns the candidate, with synchronous saves and then a lower prefetch depth if it needs them to fit."""
        rehearsal = rehearsal or self._any_rehearsal(plan)
        book = self._ledger(plan, analysis, rehearsal)
        if not book.fits and "async_save" not in plan.pinned:
            plan = replace(plan, async_save=False)
            book = self._ledger(plan, analysis, rehearsal)
        for fewer in sorted(self.problem.host_bytes, reverse=True):
            if not book.fits and fewer < plan.prefetch:
                plan = replace(plan, prefetch=fewer)
                book = self._ledger(plan, analysis, rehearsal)
        if not book.fits and kind(plan) not in self.rehearsals and self._fits_once_loaded(book):
            try:
                self._rehearse(plan)
            except DoesNotCompile as problem:
                self.failures.append(str(problem))
                self.rehearsals[kind(plan)] = rehearsal  # not tried again for every micro-batch
            return self._candidate(plan, analysis, confirmed=confirmed)
        devices, problem = self.problem.devices, self.problem
        shared = devices // problem.hosts if problem.platform == "cpu" else 1  # the cores of a CPU: no more of them
        seconds = step_seconds(plan, analysis, self._static(plan), self.rates, devices=devices, sharing=shared)
        return Candidate(plan, book, seconds, confirmed, analysis)

    def _ledger(self, plan: Plan, analysis: Analysis, rehearsal: Rehearsal) -> Ledger:
        return ledger(plan, self.problem, static=self._static(plan), analysis=analysis, rehearsal=rehearsal)

    def _price(self, candidate: Candidate, plan: Plan, problem: Problem) -> Ledger:
        """Returns the ledger of a candidate for another problem, saved and read as `plan` says, without a compile."""
        assert candidate.analysis is not None
        rehearsal = self._any_rehearsal(plan)
        return ledger(plan, problem, static=self._static(plan), analysis=candidate.analysis, rehearsal=rehearsal)

    def _analyse(self, plan: Plan) -> Analysis:
        key = same_step(plan)
        if key not in self.analyses:
            self.analyses[key] = self.compiler.analyse(key)
        return self.analyses[key]

    def _any_rehearsal(self, plan: Plan) -> Rehearsal:
        """Returns the rehearsal of this kind of plan, or any: the process hardly depends on the plan."""
        if not self.rehearsals:
            self._rehearse(plan)
        return self.rehearsals.get(kind(plan)) or next(iter(self.rehearsals.values()))

    def _rehearse(self, plan: Plan) -> Rehearsal:
        self.say("rehearsing the training process")
        found = self.rehearsals[kind(plan)] = self.compiler.rehearse(plan)
        return found

    def _fits_once_loaded(self, book: Ledger) -> bool:
        running = [peak for phase, peak in book.phases.items() if phase != "load"]
        return book.host is None and max(running) + book.spare_bytes <= self.problem.budget_bytes

    def _best(self, candidates: list[Candidate]) -> Candidate:
        fastest = min(candidate.seconds for candidate in candidates)
        near = [candidate for candidate in candidates if candidate.seconds <= NEAR * fastest]
        return min(near, key=lambda candidate: candidate.preference())

    def _confirm(self, best: Candidate) -> Candidate | None:
        """Returns the candidate compiled and rehearsed for itself; None where it does not compile."""
        self.say(f"confirming micro-batch {best.plan.micro_batch}, {in_words(best.plan.levers)}")
        try:
            analysis = self._analyse(best.plan)
            rehearsal = self._rehearse(replace(best.plan, async_save=True))
        except DoesNotCompile as problem:
            self.failures.append(str(problem))
            return None
        again = self._candidate(best.plan, analysis, confirmed=True, rehearsal=rehearsal)
        return replace(again, seconds=best.seconds if best.measured else again.seconds, measured=best.measured)

    def _plan(self, combination: Mapping[str, Any], micro: int) -> Plan:
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
                **combination,
            }
        )

    def _scaling(self, plan: Plan) -> tuple[Scaled, ...]:
        """Returns the step on other numbers of accelerators; empty on a CPU, whose devices share what it has."""
        if self.problem.platform == "cpu" or self.problem.devices == 1:
            return ()
        return scaling(plan, self._analyse(plan), self._static(plan), self.rates)

    def _planned(self, chosen: Candidate, ranked: list[Candidate], *, fitting: int, found: list[Candidate]) -> Planned:
        """Returns the result of the search. `ranked` are candidates that fit and whose times can be compared."""
        problem = self.problem
        others = [c for c in ranked if replace(c.plan, async_save=True) != replace(chosen.plan, async_save=True)]
        how = "timed here" if chosen.measured else "by the chip's rates"
        fastest = min(candidate.seconds for candidate in [chosen, *ranked])
        which = "the fastest" if chosen.seconds <= fastest else f"within {NEAR - 1:.0%} of the fastest, and smaller,"
        reason = (
            f"{which} of {fitting} plans that fit ({format_seconds(chosen.seconds)} a step, {how});"
            f" {problem.recipe} has a peak of {format_bytes(chosen.peak)} in the phase '{chosen.ledger.phase}'"
        )
        return Planned(
            plan=chosen.plan,
            ledger=chosen.ledger,
            recipe=problem.recipe,
            parameters=self.static.parameters,
            step_seconds=chosen.seconds,
            step_seconds_source="measured" if chosen.measured else "roofline",
            step_flops=self._analyse(chosen.plan).flops,
            largest_buffers=self._analyse(chosen.plan).largest,
            chip_flops=self.rates.flops[chosen.plan.precision],
            tokens_per_step=(
                problem.effective_batch * problem.rate_per_example if problem.rate_unit == "tokens" else None
            ),
            examples_per_step=problem.effective_batch,
            scaling=self._scaling(chosen.plan),
            compiles=self.compiler.compiles,
            left_out=tuple(dict.fromkeys(self.failures)),
            devices=problem.devices,
            hosts=problem.hosts,
            reason=reason,
            other_budgets=other_budgets(problem, found, chosen, self._price),
            alternatives=tuple(
                alternative(candidate, chosen) for candidate in sorted(others, key=lambda c: c.seconds)[:3]
            ),
        )
