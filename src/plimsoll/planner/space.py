"""Candidates of a search: all possible combinations of lever values, from the fastest to the smallest.

A lever is a setting that saves memory. Levers that the user set (pins) keep their values. A pin that is impossible on
this chip, or with another pin, is refused here. `levers/lever.py` describes a lever's values, order and conditions.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

from plimsoll.errors import RecipeError
from plimsoll.levers import registry
from plimsoll.levers.records.offload import OFFLOAD_WORDS, OFFLOADED, SUPPORTED_AS
from plimsoll.planned import Plan
from plimsoll.planner.types import Problem, Rates, Static
from plimsoll.types import Levers, Offload, Storage

Family = tuple[Any, ...]
"""Values of all levers (memory settings) except those that only set the bits of stored weights and state."""

StaticOf = Callable[[int, Storage], Static]
"""Function that returns the bytes of the state, from the number of devices that share it and its bits per number."""


@dataclass(frozen=True, eq=False)
class Combination:
    """Values of all levers (memory settings) that change a compiled function, except the micro-batch."""

    levers: dict[str, Any]
    plans: dict[int, Plan]
    """Plans by micro-batch, with the fastest prefetching and saving. These two do not change compiled functions."""
    parents: tuple[Combination, ...]
    """Combinations that differ in one lever and are expected to be faster and to need more memory."""
    hope: float
    """Lowest ratio of timed to estimated seconds that a step with these values may reach."""

    apart: tuple[Any, ...]
    """Values of the levers on which the ratio of compiled to traced bytes depends. A compiled step corrects only the
    estimates of combinations with the same values."""

    @cached_property
    def steps(self) -> dict[int, Plan]:
        """Plans by micro-batch, without settings that do not affect compiled functions (`same_step`)."""
        return {micro: same_step(plan) for micro, plan in self.plans.items()}

    @cached_property
    def candidates(self) -> list[Candidate]:
        """Candidates of the combination: one for each micro-batch, the smallest first."""
        return [Candidate(self, micro) for micro in sorted(self.plans)]

    @cached_property
    def family(self) -> Family:
        """Values of the levers, without those that only set the bits of stored weights and state."""
        stored = {lever.name for lever in registry.chained()}
        return tuple(value for name, value in self.levers.items() if name not in stored)


class Candidate(NamedTuple):
    """A combination of lever values with a micro-batch: one choice of the search."""

    combination: Combination
    micro: int

    @property
    def plan(self) -> Plan:
        return self.combination.plans[self.micro]

    @property
    def step(self) -> Plan:
        """The candidate's plan, without settings that do not affect compiled functions."""
        return self.combination.steps[self.micro]

    @property
    def words(self) -> str:
        return f"micro-batch {self.micro}, {registry.in_words(self.step.levers)}"

    def among(self, combinations: Iterable[Combination]) -> list[Candidate]:
        """Returns the candidates of `combinations` with the micro-batch of this one."""
        return [Candidate(other, self.micro) for other in combinations if self.micro in other.plans]

    def doublings_to(self, other: Candidate) -> float:
        """Returns the distance between two micro-batches in doublings, as a float of 0 or more."""
        return abs(math.log2(other.micro / self.micro))


def combinations(problem: Problem, rates: Rates, static_of: StaticOf) -> list[Combination]:
    """Returns all combinations of lever values, parents before their children.

    Raises:
        RecipeError: A value set by the user is impossible, or an offload set by the user would move nothing.
    """
    static = static_of(1, Storage())
    _require_moved(problem, static)
    tried = {lever.name: lever.tried(problem, rates) for lever in registry.searched()}
    grid = _Grid(problem, tried, _storages(problem, rates), micro_batches(problem))
    rules = [lever.goes_with for lever in registry.LEVERS.values() if lever.goes_with is not None]
    for place in itertools.product(*map(range, grid.shape)):
        levers = grid.levers(place)
        if all(rule(levers, tried) for rule in rules) and not _unmovable(static, levers["offload"]):
            grid.add(place, levers)
    return list(grid.made.values())


Place = tuple[int, ...]
"""Index of each lever's value. The final number is the index in the list of `_storages`."""


@dataclass(frozen=True)
class _Grid:
    """Grid of the levers' values, with the combinations made so far."""

    problem: Problem
    tried: Mapping[str, Sequence[Any]]
    chain: Sequence[Mapping[str, Any]]
    micros: Sequence[int]
    made: dict[Place, Combination] = field(default_factory=dict)

    @property
    def shape(self) -> list[int]:
        return [len(values) for values in (*self.tried.values(), self.chain)]

    def levers(self, place: Place) -> dict[str, Any]:
        values = {name: values[at] for at, (name, values) in zip(place, self.tried.items(), strict=False)}
        return {**values, **self.chain[place[-1]]}

    def add(self, place: Place, levers: dict[str, Any]) -> None:
        """Adds the combination at a place, without micro-batches for which an earlier combination has the same step."""
        problem = self.problem
        micros = [problem.effective_batch] if levers["layerwise"] else self.micros
        same_before = self._same_before(place)
        plans = {
            micro: _plan(problem, levers, micro)
            for micro in micros
            if not any(is_same(micro) for is_same in same_before)
        }
        if not plans:
            return

        apart = [name for name in levers if problem.platform in registry.LEVERS[name].sets_apart]
        hopes = [registry.LEVERS[name].hope(value, problem) for name, value in levers.items()]
        self.made[place] = Combination(
            levers=levers,
            plans=plans,
            parents=tuple(self._parents(place)),
            apart=tuple(levers[name] for name in apart),
            hope=math.prod(hopes),
        )

    def _earlier(self, place: Place, axis: int) -> Iterator[Place]:
        """Yields the places of combinations with a faster value of the lever at index `axis`, the nearest first."""
        for before in range(place[axis] - 1, -1, -1):
            other = (*place[:axis], before, *place[axis + 1 :])
            if other in self.made:
                yield other

    def _same_before(self, place: Place) -> list[Callable[[int], bool]]:
        """Returns a function for each added combination in which one lever has a faster value.

        It takes a micro-batch, and returns True if both combinations make the same step with it.
        """
        found = []
        for axis, (name, values) in enumerate(self.tried.items()):
            is_same = registry.LEVERS[name].same_step
            if is_same is not None:
                before = [values[other[axis]] for other in self._earlier(place, axis)]
                found += [partial(is_same, self.problem, value, values[place[axis]]) for value in before]
        return found

    def _parents(self, place: Place) -> list[Combination]:
        """Returns, for each lever, the combination with the next faster value of that lever.

        If no such combination was added, returns all added combinations in which no lever has a slower value.
        """
        nearest = [next(self._earlier(place, axis), None) for axis in range(len(place))]
        parents = [self.made[other] for other in nearest if other is not None]
        before = (each for other, each in self.made.items() if all(map(operator.le, other, place)))
        return parents or list(before)


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
    """Yields the plan, and then variants that need fewer and fewer bytes but the same compiled functions.

    The variants save synchronously, unless the user set the way of saving, and then also prefetch fewer batches.
    """
    yield plan
    if plan.lever("async_save") and "async_save" not in plan.pinned:
        plan = plan.with_levers(async_save=False)
        yield plan
    for depth in sorted(problem.host_bytes, reverse=True):
        if depth < plan.lever("prefetch"):
            yield plan.with_levers(prefetch=depth)


def same_step(plan: Plan) -> Plan:
    """Returns a plan without settings that do not affect compiled functions: those levers get their default value."""
    unseen = {name: lever.plain for name, lever in registry.LEVERS.items() if not lever.compiled}
    return replace(plan.with_levers(**unseen), pinned=())


def micro_batches(problem: Problem) -> list[int]:
    """Returns the micro-batch sizes to search: divisors of the effective batch with an equal share for every device.

    A share is a multiple of the examples that the model normalises together. A micro-batch set by the user is the only
    one.

    Raises:
        RecipeError: The effective batch, or the user's micro-batch, cannot be divided.
    """
    devices, together = problem.devices, problem.normalised_together
    share = devices * together
    batch = problem.effective_batch
    pinned = problem.pins.get("micro_batch")
    micro = batch if pinned is None else pinned
    if micro < 1 or micro % share or batch % micro:
        of_user = "the effective batch" if pinned is None else f"--micro-batch {pinned}"
        group = f" x {together:,} examples that are normalised together (--norm-group)" if together > 1 else ""
        raise RecipeError(
            f"{of_user} cannot be divided: a micro-batch must divide the effective batch of {batch:,} examples"
            f" (--batch-size x --gradient-accumulation-steps), and be a multiple of {share:,}: {devices:,} devices of"
            f" {problem.chip}{group}"
        )

    if pinned is not None:
        return [pinned]
    whole = batch // share
    small = [n for n in range(1, math.isqrt(whole) + 1) if whole % n == 0]
    return [n * share for n in sorted({*small, *(whole // n for n in small)})]


def _storages(problem: Problem, rates: Rates) -> list[dict[str, Any]]:
    """Returns choices of the bits of stored weights and state: the fastest, then one lever after another lowered."""
    tried = {lever.name: lever.tried(problem, rates) for lever in registry.chained()}
    chain = [{name: values[0] for name, values in tried.items()}]
    for name, values in tried.items():
        for value in values[1:]:
            chain.append(chain[-1] | {name: value})
    return chain


def _unmovable(static: Static, offload: Offload) -> list[str]:
    """Returns the parts of the state that `offload` names, but of which the model has nothing worth moving."""
    return [part for part in SUPPORTED_AS if part in OFFLOADED[offload] and not static.movable.get(part)]


def _require_moved(problem: Problem, static: Static) -> None:
    """Raises RecipeError if an offload set by the user names a part of the state that would not be moved."""
    pinned = problem.pins.get("offload", "none")
    empty = _unmovable(static, pinned)
    if empty:
        words = " or ".join(OFFLOAD_WORDS[part] for part in empty)
        raise RecipeError(
            f"--offload {pinned} would change nothing: {problem.recipe} has no {words} large enough to be moved. Of"
            " frozen weights only layers that are stacked along a first axis are moved. Leave it out"
        )
