"""Candidates of a search: every combination of the levers, from the fastest to the smallest, less what is refused.

Pinned levers keep their value; a pin that is impossible on this chip, or beside another one, is refused here. What a
lever's values are, their order, and what they go with, stands in the lever's own record (`levers/lever.py`).
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

from plimsoll.errors import RecipeError
from plimsoll.levers import registry
from plimsoll.levers.records.offload import OFFLOAD_WORDS, OFFLOADED, SUPPORTED_AS
from plimsoll.planned import Plan
from plimsoll.planner.types import Problem, Rates, Static
from plimsoll.types import Levers, Offload, Storage

Family = tuple[Any, ...]
"""Values of the levers that change a step, and not only how its state and weights are stored."""

StaticOf = Callable[[int, Storage], Static]
"""Bytes of the state, from the number of devices that share a copy and how it is stored."""


@dataclass(frozen=True, eq=False)
class Combination:
    """A value for every lever but the micro-batch and those that no compiled function depends on."""

    levers: dict[str, Any]
    plans: dict[int, Plan]
    """Micro-batch to the plan, with everything that gives time for bytes without a compile at its roomiest."""
    parents: tuple[Combination, ...]
    """Those with one lever at an earlier value: faster where nothing is known, and larger."""
    hope: float
    """Share of the time that the levers may come down to beyond what rates can tell, where plans are timed."""

    apart: tuple[Any, ...]
    """Values of the levers of whose other values nothing is learned about traces."""

    @cached_property
    def steps(self) -> dict[int, Plan]:
        """Micro-batch to the plan as the compiler sees it."""
        return {micro: same_step(plan) for micro, plan in self.plans.items()}

    @cached_property
    def candidates(self) -> list[Candidate]:
        """The combination with each micro-batch, the smallest first."""
        return [Candidate(self, micro) for micro in sorted(self.plans)]

    @cached_property
    def family(self) -> Family:
        """The levers, less those that only say how state and weights are stored."""
        stored = {lever.name for lever in registry.chained()}
        return tuple(value for name, value in self.levers.items() if name not in stored)


class Candidate(NamedTuple):
    """A combination with a micro-batch: what the search chooses from."""

    combination: Combination
    micro: int

    @property
    def plan(self) -> Plan:
        return self.combination.plans[self.micro]

    @property
    def step(self) -> Plan:
        """The plan as the compiler sees it."""
        return self.combination.steps[self.micro]

    @property
    def words(self) -> str:
        return f"micro-batch {self.micro}, {registry.in_words(self.step.levers)}"

    def among(self, combinations: Iterable[Combination]) -> list[Candidate]:
        """Returns the candidates of other combinations with this micro-batch."""
        return [Candidate(other, self.micro) for other in combinations if self.micro in other.plans]

    def doublings_to(self, other: Candidate) -> float:
        """Returns how many times one micro-batch is doubled until it is the other."""
        return abs(math.log2(other.micro / self.micro))


def combinations(problem: Problem, rates: Rates, static_of: StaticOf) -> list[Combination]:
    """Returns every combination, parents before their children.

    Raises:
        RecipeError: A pinned value is impossible, or would move nothing.
    """
    _require_moved(problem, static_of(1, Storage()))
    micros = micro_batches(problem)
    tried = {lever.name: lever.tried(problem, rates) for lever in registry.searched()}
    chain = _storages(problem, rates)
    rules = [lever.goes_with for lever in registry.LEVERS.values() if lever.goes_with is not None]
    made: dict[tuple[int, ...], Combination] = {}
    for place in itertools.product(*(range(len(values)) for values in (*tried.values(), chain))):
        values = {name: tried[name][at] for name, at in zip(tried, place, strict=False)}
        levers = values | chain[place[-1]]
        if not all(rule(levers, tried) for rule in rules) or _unmovable(static_of(1, Storage()), levers["offload"]):
            continue
        of_levers = [problem.effective_batch] if levers["layerwise"] else micros
        before = _same_before(place, tried, problem)
        others = [micro for micro in of_levers if not any(same(micro) for at, same in before if at in made)]
        if not others:
            continue
        made[place] = Combination(
            levers=levers,
            plans={micro: _plan(problem, levers, micro) for micro in others},
            parents=tuple(_parents(place, made)),
            apart=tuple(
                value for name, value in levers.items() if problem.platform in registry.LEVERS[name].sets_apart
            ),
            hope=math.prod(registry.LEVERS[name].hope(value, problem) for name, value in levers.items()),
        )
    return list(made.values())


def _same_before(
    place: tuple[int, ...], tried: Mapping[str, Sequence[Any]], problem: Problem
) -> list[tuple[tuple[int, ...], Callable[[int], bool]]]:
    """Returns the places with one lever at an earlier value, each with whether a micro-batch has its step there."""
    found = []
    for number, (at, (name, values)) in enumerate(zip(place, tried.items(), strict=False)):
        same = registry.LEVERS[name].same_step
        if same is None:
            continue
        for before in range(at):
            earlier = (*place[:number], before, *place[number + 1 :])
            found.append((earlier, partial(same, problem, values[before], values[at])))
    return found


def _parents(place: tuple[int, ...], made: dict[tuple[int, ...], Combination]) -> list[Combination]:
    """Returns the combinations with one lever at the value before; where there is none, all with earlier values."""
    found = []
    for lever, at in enumerate(place):
        earlier = ((*place[:lever], before, *place[lever + 1 :]) for before in range(at - 1, -1, -1))
        found += itertools.islice((made[each] for each in earlier if each in made), 1)
    before = (each for other, each in made.items() if all(map(operator.le, other, place)))
    return found or list(before)


def _plan(problem: Problem, levers: dict[str, Any], micro: int) -> Plan:
    chosen = {
        "micro_batch": micro,
        "prefetch": problem.pins.get("prefetch", max(problem.host_bytes)),
        "async_save": problem.pins.get("async_save", True),
    }
    return Plan(
        chip=problem.chip,
        accumulation=problem.effective_batch // micro,
        devices=problem.devices,
        levers=Levers(chosen | levers),
        pinned=tuple(sorted(problem.pins)),
    )


def smaller(plan: Plan, problem: Problem) -> Iterator[Plan]:
    """Yields the plan and then variants with fewer and fewer bytes, by levers that change no compiled function.

    First with synchronous saves unless saving is pinned, then with fewer batches made ready, too.
    """
    yield plan
    if plan.lever("async_save") and "async_save" not in plan.pinned:
        plan = plan.with_levers(async_save=False)
        yield plan
    for depth in sorted(problem.host_bytes, reverse=True):
        if depth < plan.lever("prefetch"):
            yield plan.with_levers(prefetch=depth)


def same_step(plan: Plan) -> Plan:
    """Returns the plan as the compiler sees it: levers that change no compiled function at their plain value."""
    unseen = {name: lever.plain for name, lever in registry.LEVERS.items() if not lever.compiled}
    return plan.with_levers(**unseen)


def micro_batches(problem: Problem) -> list[int]:
    """Returns the divisors of the effective batch that give every device a share; a pinned one alone.

    A share is a multiple of the examples that the model normalises together.

    Raises RecipeError where no micro-batch, or not the pinned one, can be divided.
    """
    pinned, devices, together = problem.pins.get("micro_batch"), problem.devices, problem.normalised_together
    share = devices * together
    if together > 1 and (pinned or problem.effective_batch) % share:
        batch = "the effective batch" if pinned is None else "--micro-batch"
        raise RecipeError(
            f"{problem.recipe} normalises {together:,} examples together, and {batch} of"
            f" {pinned or problem.effective_batch:,} is no multiple of that for each of {devices} devices: choose a"
            " multiple, or fewer that are normalised together with --norm-group"
        )
    if problem.effective_batch % devices:
        raise RecipeError(
            f"the effective batch of {problem.effective_batch} examples (--batch-size x --gradient-accumulation-steps)"
            f" cannot be divided among the {devices} devices of {problem.chip}: choose a multiple of {devices}"
        )
    if pinned is None:
        whole = problem.effective_batch // share
        small = [n for n in range(1, math.isqrt(whole) + 1) if whole % n == 0]
        return [n * share for n in sorted({*small, *(whole // n for n in small)})]
    if pinned < 1 or problem.effective_batch % pinned:
        raise RecipeError(
            f"--micro-batch {pinned} does not divide the effective batch of {problem.effective_batch} examples"
            " (--batch-size x --gradient-accumulation-steps): choose a divisor of it"
        )
    if pinned % devices:
        raise RecipeError(
            f"--micro-batch {pinned} cannot be divided among the {devices} devices of {problem.chip}: choose a"
            f" multiple of {devices}"
        )
    return [pinned]


def _storages(problem: Problem, rates: Rates) -> list[dict[str, Any]]:
    """Returns values of the chained levers: first all as they are fastest, then one after another in fewer bits."""
    tried = {lever.name: lever.tried(problem, rates) for lever in registry.chained()}
    last = {name: values[0] for name, values in tried.items()}
    chain = [dict(last)]
    for name, values in tried.items():
        for value in values[1:]:
            last[name] = value
            chain.append(dict(last))
    return chain


def _unmovable(static: Static, offload: Offload) -> list[str]:
    """Returns the parts of the state that `offload` names, and of which this model has nothing worth moving."""
    return [part for part in SUPPORTED_AS if part in OFFLOADED[offload] and not static.movable.get(part)]


def _require_moved(problem: Problem, static: Static) -> None:
    """Raises RecipeError where what is pinned would move nothing."""
    pinned = problem.pins.get("offload", "none")
    if empty := _unmovable(static, pinned):
        words = " or ".join(OFFLOAD_WORDS[part] for part in empty)
        raise RecipeError(
            f"--offload {pinned} would change nothing: {problem.recipe} has no {words} large enough to be moved. Of"
            " what is frozen, layers that are stacked along a first axis are. Leave it out"
        )
