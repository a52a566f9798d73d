"""The training loop: steps, evaluations and saves in their order. Every side effect is one line of code."""

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
"""Map from backend to the largest number of steps in flight; 2 for other backends. Without a limit JAX would dispatch
steps far ahead, and memory would grow.

On a CPU the limit is 1. The next step would allocate temporaries while the kernel still reclaims those of the previous
step, which at times raised the peak by a fifth of the temporaries (notes, "Two steps at once"). A small model's
temporaries come from the heap and are reused, so its limit is 2 (`Executables.in_heap`). The loop then logs one step
and reads the next batch while the other step runs."""


@dataclass(kw_only=True)
class Training:
    """Arguments of the training loop."""

    state: State
    """The session's initial state. The first step reuses its buffers."""
    executables: Executables
    loader: Batches
    evaluate: Evaluate
    save: Save
    stop: Stop
    log: Log


def run_steps(training: Training) -> tuple[State, Ended]:
    """Runs the remaining steps with their evaluations and saves. Returns the final state and the end of the session.

    Checkpoint n holds the state after n updates, and a data loader about to yield batch n. So the loop saves after the
    update and before the next batch, which tests/training/test_resume.py checks.
    """
    state = training.state
    step = int(state["step"])
    loader = training.loader
    evaluate = training.evaluate
    save = training.save
    stop = training.stop
    flight = InFlight(training.log, in_heap=training.executables.in_heap)

    with save:  # waits for a save in the background, even after an error
        # Repeat an evaluation that a signal ended in the previous session.
        if evaluate.was_left_out(step):
            evaluate.run(step, state)

        while not stop.decide(step):
            state, report = training.executables.step(state, next(loader))  # the old state's buffers are reused
            step += 1
            flight.add(step, report)

            # Evaluate before saving, because a new best state is saved at once.
            if evaluate.is_due(step):
                flight.land()
                evaluate.run(step, state)
            if save.is_due(step) or evaluate.is_best(step):
                flight.land()
                save.run(step, state)

        # Evaluate and save the last state, unless that is done.
        flight.land()
        if evaluate.is_missing(step) and stop.allows_evaluation:
            evaluate.run(step, state)
        if save.is_missing(step):
            save.run(step, state)
    return state, Ended(step, stop.why)


class InFlight:
    """Reports of the steps in flight. Waits for the oldest step when the number of steps reaches the limit."""

    def __init__(self, log: Log, *, in_heap: bool = False) -> None:
        self._log = log
        self._steps: deque[tuple[int, Report]] = deque()
        self._between = memory.BetweenSteps()
        limit = IN_FLIGHT.get(jax.default_backend(), 2)
        self._limit = 2 if in_heap else limit
        self._settle_every = memory.LOOK_SECONDS if in_heap else 0.0
        self._settle_next = 0.0 if limit == 1 else math.inf

    def add(self, step: int, report: Report) -> None:
        """Adds the report of a dispatched step, and waits for the oldest steps until fewer than the limit are left."""
        self._steps.append((step, report))
        while len(self._steps) >= self._limit:
            self._finish_oldest()
        now = time.perf_counter()
        if now >= self._settle_next:
            self._settle_next = now + self._settle_every
            self._between.settle()

    def land(self) -> None:
        """Waits for all steps in flight, and logs them."""
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
    """Returns True if a float16 step overflowed, so that its update was skipped and the loss scale halved."""
    return numbers.get("scale", 0.0) > SMALLEST and not math.isfinite(numbers["gradient_norm"])


def require_finite_step(step: int, numbers: Mapping[str, float]) -> None:
    """Raises StoppedError if the loss or the norm of the gradient is not finite.

    Args:
        step: Number of the step.
        numbers: Metrics of the step.
    """
    loss = numbers["loss"]
    norm = numbers["gradient_norm"]
    if math.isfinite(loss) and math.isfinite(norm):
        return
    raise StoppedError(
        f"step {step}: the loss is {loss:g} and the gradient's norm {norm:g}, so training stopped and saved nothing"
        " over the last good checkpoint. Continue from it by `plimsoll resume` with a lower --learning-rate, or find"
        " the cause with --debug-nans"
    )
