"""The loop. It can be read aloud; every side effect is one line; the order that matters is explained."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import jax

from plimsoll.errors import StoppedError
from plimsoll.levers.loss_scale import SMALLEST
from plimsoll.training import memory
from plimsoll.training.acts import Batches, Evaluate, Log, Save
from plimsoll.training.program import Executables
from plimsoll.training.reports import numbers_of
from plimsoll.training.step import Report, State
from plimsoll.training.stop import Ended, Stop

IN_FLIGHT = {"cpu": 1}
"""Backend to the steps that may be under way at once, else 2: JAX runs ahead otherwise, and memory with it.

On a CPU one: the next step would touch its temporaries while the kernel still takes back those of the last, which
showed as a fifth of them on top of the peak, now and then (notes, "Two steps at once"). Temporaries from the heap
stay where they are, so two steps of a small model may be under way: the numbers of one are read and logged, and the
next batch taken, while the other runs."""


@dataclass(kw_only=True)
class Training:
    """What a session trains with."""

    state: State
    """The state that it begins with; the first step reuses its buffers."""
    executables: Executables
    loader: Batches
    evaluate: Evaluate
    save: Save
    stop: Stop
    log: Log


def run_steps(training: Training) -> tuple[State, Ended]:
    """Takes the steps that are left, and returns the final state.

    Checkpoint n holds the state after n updates and a loader about to yield batch n: save after the update and before
    the next batch. tests/training/test_resume.py notices if either line moves.
    """
    state = training.state
    step = int(state["step"])
    loader = training.loader
    evaluate = training.evaluate
    save = training.save
    stop = training.stop
    flight = InFlight(training.log, in_heap=training.executables.in_heap)

    with save:  # a save that was begun is finished, however the loop ends
        # An evaluation that a signal ended comes first.
        if evaluate.was_left_out(step):
            evaluate.run(step, state)

        while not stop.decide(step):
            state, report = training.executables.step(state, next(loader))  # the old state's buffers are reused
            step += 1
            flight.add(step, report)

            # Evaluate before saving: the best state is saved at once.
            if evaluate.is_due(step):
                flight.land()
                evaluate.run(step, state)
            if save.is_due(step) or evaluate.is_best(step):
                flight.land()
                save.run(step, state)

        # The end: what is not evaluated or saved yet.
        flight.land()
        if evaluate.is_missing(step) and stop.allows_evaluation:
            evaluate.run(step, state)
        if save.is_missing(step):
            save.run(step, state)
    return state, Ended(step, stop.why)


class InFlight:
    """Holds the reports of the steps under way, and waits for the oldest when there are too many."""

    def __init__(self, log: Log, *, in_heap: bool = False) -> None:
        self._log = log
        self._steps: deque[tuple[int, Report]] = deque()
        self._between = memory.BetweenSteps()
        limit = IN_FLIGHT.get(jax.default_backend(), 2)
        self._limit = 2 if in_heap else limit
        self._settle_every = memory.LOOK_SECONDS if in_heap else 0.0
        self._settle_next = 0.0 if limit == 1 else math.inf

    def add(self, step: int, report: Report) -> None:
        """Takes the report of a step that was begun."""
        self._steps.append((step, report))
        while len(self._steps) >= self._limit:
            self._finish_oldest()
        now = time.perf_counter()
        if now >= self._settle_next:
            self._settle_next = now + self._settle_every
            self._between.settle()

    def land(self) -> None:
        """Waits for all steps under way."""
        while self._steps:
            self._finish_oldest()

    def _finish_oldest(self) -> None:
        step, report = self._steps.popleft()
        numbers = numbers_of(report)
        if is_overflow(numbers):
            numbers = {name: number for name, number in numbers.items() if name.partition("/")[0] != "gradient_norm"}
        else:
            require_finite_step(step, numbers)
        self._log.step(step, numbers)


def is_overflow(numbers: Mapping[str, float]) -> bool:
    """Returns whether a step overflowed in float16: it was skipped, and its scale is halved."""
    return numbers.get("scale", 0.0) > SMALLEST and not math.isfinite(numbers["gradient_norm"])


def require_finite_step(step: int, numbers: Mapping[str, float]) -> None:
    """Raises StoppedError where the loss or the norm of the gradient is not finite."""
    loss = numbers["loss"]
    norm = numbers["gradient_norm"]
    if math.isfinite(loss) and math.isfinite(norm):
        return
    raise StoppedError(
        f"step {step}: the loss is {loss:g} and the gradient's norm {norm:g}, so training stopped and saved nothing"
        " over the last good checkpoint. Continue from there with the same command and a lower --learning-rate in a new"
        " --run, or find the cause with --debug-nans"
    )
