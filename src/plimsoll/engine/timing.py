"""Plans that are timed here: on one random batch, and in turn, so that other work affects all of them alike."""

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
"""Rounds of timing, where the order is not clear before."""
FEWEST_ROUNDS = 2
"""Rounds after which an order may be clear."""
APART = 0.85
"""Share of another plan's least time below which all of a plan's times are clearly less."""
TIMED_SECONDS = 1.0
"""Seconds of timing for each plan, where the order is not clear before: short steps need more rounds where others use
the machine."""
LONGEST_SECONDS = 4.0
"""Seconds of timing for each plan after which no further round begins."""


@dataclass(frozen=True)
class Candidate:
    """A plan's functions, compiled, and the batch that they are timed on."""

    steps: RecipeSteps
    plan: Plan
    compile: Callable[..., jax.stages.Compiled]
    put: Callable[[Batch], Any]
    """Puts a batch where a step on one device takes it from."""

    @property
    def kind(self) -> Hashable:
        """What its state follows from: plans of one kind take turns on one state."""
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
    """Returns the median seconds of a step of each candidate, until their order is clear or the time is over.

    Never are there two states.

    Args:
        candidates: What is timed.
        queued: Steps that are begun one after another, and waited for together.
        clock: Clock in seconds.
    """
    ready = [(candidate.step, candidate.batch) for candidate in candidates]
    seconds: list[list[float]] = [[] for _ in candidates]
    kind = state = metrics = None
    start = clock()
    while not is_clear(seconds, clock() - start):
        for candidate, (step, batch), times in zip(candidates, ready, seconds, strict=True):
            # A state of its kind, once the one before is gone.
            if candidate.kind != kind:
                kind, state = candidate.kind, None
                state = candidate.init(np.uint32(0))

            # Steps of it.
            begin = clock()
            for _ in range(queued):
                state, metrics = step(state, batch)
            jax.block_until_ready((state, metrics))
            times.append((clock() - begin) / queued)
    return [statistics.median(times[1:] or times) for times in seconds]


def is_clear(seconds: Sequence[Sequence[float]], elapsed: float) -> bool:
    """Returns whether plans were timed enough: each one's first round is its loading."""
    rounds = len(seconds[-1])
    if rounds == 0:
        return False
    if elapsed > LONGEST_SECONDS * len(seconds):
        return True

    # An order that is clear: the slowest step of a plan took clearly less than the fastest of the next.
    timed = sorted((min(times[1:], default=0.0), max(times[1:], default=0.0)) for times in seconds)
    apart = all(slowest < APART * fastest for (_, slowest), (fastest, _) in itertools.pairwise(timed))
    if len(seconds) > 1 and apart and rounds > FEWEST_ROUNDS:
        return True

    return rounds > ROUNDS and elapsed > TIMED_SECONDS * len(seconds)
