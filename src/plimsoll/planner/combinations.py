"""What the search may try: every combination of the levers, from the fastest to the smallest, less what is refused.

Pinned levers keep their value; a pin that is impossible on this chip, or beside another one, is refused here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

from plimsoll.errors import RecipeError
from plimsoll.levers import registry
from plimsoll.levers.records.offload import OFFLOAD_WORDS, OFFLOADED, SUPPORTED_AS
from plimsoll.planner.types import Problem, Rates, Static
from plimsoll.types import Offload, Storage


def micro_batches(problem: Problem) -> list[int]:
    """Returns the divisors of the effective batch that give every device a share; a pinned one alone.

    Raises RecipeError where no micro-batch, or not the pinned one, can be divided.
    """
    pinned, devices = problem.pins.get("micro_batch"), problem.devices
    if problem.effective_batch % devices:
        raise RecipeError(
            f"the effective batch of {problem.effective_batch} examples (--batch-size x --gradient-accumulation-steps)"
            f" cannot be divided among the {devices} devices of {problem.chip}: choose a multiple of {devices}"
        )
    if pinned is None:
        whole = problem.effective_batch // devices
        small = [n for n in range(1, math.isqrt(whole) + 1) if whole % n == 0]
        return [n * devices for n in sorted({*small, *(whole // n for n in small)})]
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


def combinations(problem: Problem, rates: Rates) -> Iterator[dict[str, Any]]:
    """Yields a value for every lever but those chosen by themselves, from the fastest combination to the smallest.

    Pinned levers keep their value. Raises RecipeError where that is impossible.
    """
    tried = {lever.name: lever.tried(problem, rates) for lever in registry.searched()}
    chain = storages(problem, rates)
    rules = [lever.goes_with for lever in registry.LEVERS.values() if lever.goes_with is not None]
    for values in itertools.product(*tried.values(), chain):
        levers = dict(zip(tried, values[:-1], strict=True)) | values[-1]
        if all(rule(levers, tried) for rule in rules):
            yield levers


def storages(problem: Problem, rates: Rates) -> list[dict[str, Any]]:
    """Returns values of the chained levers: first all as they are fastest, then one after another in fewer bits."""
    tried = {lever.name: lever.tried(problem, rates) for lever in registry.chained()}
    last = {name: values[0] for name, values in tried.items()}
    chain = [dict(last)]
    for name, values in tried.items():
        for value in values[1:]:
            last[name] = value
            chain.append(dict(last))
    return chain


def require_narrower(problem: Problem, static_of: Callable[[Storage], Static]) -> None:
    """Raises RecipeError where weights or state are to be kept in fewer bits, and none of this model's can be."""
    for name, lever in registry.LEVERS.items():
        value = problem.pins.get(name, lever.plain)
        if not lever.stores or value == lever.plain:
            continue
        if static_of(Storage(**{name: value})).state_bytes >= static_of(Storage()).state_bytes:
            raise RecipeError(
                f"{lever.flag} {value} would change nothing: {problem.recipe} has no {lever.stores} that can be"
                " kept in fewer bits. Norms, biases, leaves of less than 4,096 weights and those that are not whole"
                " blocks of 64 stay in float32, and so does the state of embeddings. Leave it out"
            )


def unmovable(static: Static, offload: Offload) -> list[str]:
    """Returns the parts of the state that `offload` names, and of which this model has nothing worth moving."""
    return [part for part in SUPPORTED_AS if part in OFFLOADED[offload] and not static.movable.get(part)]


def require_moved(problem: Problem, static: Static) -> None:
    """Raises RecipeError where what is pinned would move nothing."""
    pinned = problem.pins.get("offload", "none")
    if empty := unmovable(static, pinned):
        words = " or ".join(OFFLOAD_WORDS[part] for part in empty)
        layers = " (of what is frozen, layers that are stacked along a first axis are)" if "frozen" in empty else ""
        raise RecipeError(
            f"--offload {pinned} would change nothing: {problem.recipe} has no {words} large enough to be"
            f" moved{layers}. Leave it out"
        )
