"""Timing of plans on this machine. Plans take turns with steps on a random batch: other load slows all alike."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from plimsoll.engine.steps import RecipeSteps
from plimsoll.planned import Plan
from plimsoll.types import Batch

ROUNDS = 4
"""Least number of timed rounds (steps of every plan), unless the order of the plans' speeds is clear earlier."""
FEWEST_ROUNDS = 2
"""Least number of timed rounds before the order of the plans' speeds may count as clear."""
APART = 0.85
"""The order of two plans is clear if the faster plan's longest step takes less than this fraction of the slower
plan's shortest step."""
TIMED_SECONDS = 1.0
"""Least seconds of timing per plan, unless the order is clear earlier. Short steps need more rounds on a busy CPU."""
LONGEST_SECONDS = 4.0
"""Seconds of timing per plan after which no further round begins."""


@dataclass(frozen=True)
class Candidate:
    """A plan to be timed, with its compiled functions and its batch."""

    steps: RecipeSteps
    plan: Plan
    compile: Callable[..., jax.stages.Compiled]
    """Function that compiles a lowered function for this machine's chip."""
    put: Callable[[Batch], Any]
    """Function that moves a batch to where the step of a single device expects it."""

    @property
    def kind(self) -> Hashable:
        """Options of the plan that determine the arrays of the state. Plans of one kind are timed on the same state."""
        plan = self.plan
        return plan.storage, plan.fsdp, plan.offload, plan.precision == "float16"

    @cached_property
    def init(self) -> jax.stages.Compiled:
        return self._compiled("init", self.steps.functions(self.plan).init())

    @cached_property
    def step(self) -> jax.stages.Compiled:
        return self._compiled("step", self.steps.functions(self.plan).step(self.steps.batch)[0])

    def _compiled(self, name: str, lowered: jax.stages.Lowered) -> jax.stages.Compiled:
        file = self.steps.file(self.plan, name)
        return self.compile(lowered, deterministic=self.plan.deterministic, file=file)

    @cached_property
    def batch(self) -> Any:
        numbers = self.steps.random_batch()
        return self.put(numbers) if self.plan.devices == 1 else self.steps.functions(self.plan).put(numbers)


def step_seconds(
    candidates: Sequence[Candidate], *, queued: int = 1, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Times the steps of candidates in turn, until the order of their speeds is clear or the time limit is reached.

    Memory holds only one state at a time.

    Args:
        candidates: Plans to time.
        queued: Number of steps to dispatch before waiting for all of them.
        clock: Function that returns a time in seconds.

    Returns:
        The median seconds per step of each candidate.
    """
    ready = [(candidate.step, candidate.batch) for candidate in candidates]
    seconds: list[list[float]] = [[] for _ in candidates]
    kind = state = metrics = None
    start = clock()
    while not is_clear(seconds, clock() - start):
        for candidate, (step, batch), times in zip(candidates, ready, seconds, strict=True):
            # Free a state of another kind, and create one of this kind.
            if candidate.kind != kind:
                kind, state = candidate.kind, None
                state = candidate.init(np.uint32(0))

            # Time the candidate's steps.
            begin = clock()
            for _ in range(queued):
                state, metrics = step(state, batch)
            jax.block_until_ready((state, metrics))
            times.append((clock() - begin) / queued)
    return [statistics.median(times[1:] or times) for times in seconds]


def is_clear(seconds: Sequence[Sequence[float]], elapsed: float) -> bool:
    """Returns True once timing can end: the order of the plans is clear, or the plans were timed long enough.

    Args:
        seconds: Seconds per step in each round, for each plan. The first round is a warm-up.
        elapsed: Seconds since timing began.
    """
    rounds = len(seconds[-1])
    if rounds == 0:
        return False
    if elapsed > LONGEST_SECONDS * len(seconds):
        return True

    # The order is clear if each plan's longest step is clearly shorter than the next slower plan's shortest step.
    timed = sorted((min(times[1:], default=0.0), max(times[1:], default=0.0)) for times in seconds)
    apart = all(slowest < APART * fastest for (_, slowest), (fastest, _) in itertools.pairwise(timed))
    if len(seconds) > 1 and apart and rounds > FEWEST_ROUNDS:
        return True

    return rounds > ROUNDS and elapsed > TIMED_SECONDS * len(seconds)
