"""The loop. It can be read aloud; every side effect is one line; the order that matters is explained."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np

from plimsoll.errors import StoppedError
from plimsoll.levers.loss_scale import SMALLEST
from plimsoll.processes.interruption import NUMBERS, Interruption
from plimsoll.training import allocator, memory
from plimsoll.training.checkpoints import Checkpoints
from plimsoll.training.distributed import Agreement
from plimsoll.training.program import Executables
from plimsoll.training.schedule import FIRST_SAVE_SECONDS, SAVE_SECONDS, SAVE_SHARE, Best, EarlyStopping, Schedule
from plimsoll.training.step import Report, evaluated
from plimsoll.types import Batch

IN_FLIGHT = {"cpu": 1}
"""Backend to the steps that may be under way at once, else 2: JAX runs ahead otherwise, and memory with it.

On a CPU one: the next step would touch its temporaries while the kernel still takes back those of the last, which
showed as a fifth of them on top of the peak, now and then (notes, "Two steps at once"). Temporaries from the heap
stay where they are, so two steps of a small model may be under way: the numbers of one are read and logged, and the
next batch taken, while the other runs."""

TIME_IS_UP, OVER_BUDGET = 100, 101
"""Reasons to stop a session, besides the numbers of signals; of several processes' requests, the largest counts."""


class Batches(Protocol):
    """A `types.Source` as the loop uses it."""

    def __next__(self) -> Batch: ...
    def state(self) -> dict[str, Any]: ...


class Log(Protocol):
    """A receiver of the loop's events."""

    def step(self, done: int, metrics: Mapping[str, float]) -> None: ...
    def evaluation(self, done: int, metrics: Mapping[str, float]) -> None: ...
    def saved(self, done: int) -> None: ...


@dataclass(frozen=True)
class Ended:
    """End of a session: its last step, and why."""

    step: int
    signal: int | None
    """SIGINT, SIGTERM or SIGHUP, if one of them ended it."""
    over: bool
    """Whether it ended because the budget was exceeded."""
    early: bool = False
    """Whether it ended because evaluations brought nothing better (`EarlyStopping`)."""


class EvaluationStopped(Exception):
    """A signal, its only argument, that came while the held-out set was evaluated."""


def run_steps(
    state: Any,
    loader: Batches,
    executables: Executables,
    schedule: Schedule,
    checkpoints: Checkpoints,
    evaluate: Callable[[Any], Mapping[str, float]],
    log: Log,
    interruption: Interruption,
    over_budget: Callable[[], bool] = lambda: False,
    stopping: EarlyStopping | None = None,
    best: Best | None = None,
    last_evaluated: int | None = None,
) -> tuple[Any, Ended]:
    """Takes the steps that are left, and returns the final state. `interruption` is in force already.

    Where the budget is exceeded it saves and stops, between steps, as at a signal. Of several processes all do, once
    one of them requests it. A state that is evaluated as better than the `best` so far is saved at once.

    A signal during an evaluation ends that: the state is saved without it. So where the first step's evaluation is due
    and `last_evaluated`, the step that was evaluated last, is before it, it comes first; None where none is left out.

    Checkpoint n holds the state after n updates and a loader about to yield batch n, so we save after the update
    and before the next batch. Moving either line breaks exact resumption, which tests/training/test_resume.py
    would notice.
    """
    first = int(state["step"])
    started = time.monotonic()
    deadline = started + schedule.stop_after_seconds
    flight, agreed = _InFlight(log, in_heap=executables.in_heap), Agreement()
    stopping = stopping or EarlyStopping(schedule)
    evaluated_at = saved_at = first
    step = first
    reason = 0
    best = best or Best(schedule.best_by)
    checkpoints.best_step = best.step
    by_clock = schedule.save_by_clock and agreed.alone
    next_save = started + FIRST_SAVE_SECONDS

    def request() -> int:
        late = TIME_IS_UP if time.monotonic() >= deadline else 0
        return interruption.signal or late or (OVER_BUDGET if over_budget() else 0)

    def reason_now() -> int:
        """Returns why it stops, a signal since the last step included: of several processes one they agreed on."""
        return reason or (interruption.signal or 0 if agreed.alone else 0)

    def evaluate_state() -> int:
        """Evaluates and logs the state. Returns the signal that ended the evaluation, 0 for none."""
        try:
            metrics = evaluate(evaluated(state))
        except EvaluationStopped as stopped:
            return stopped.args[0]
        except Exception as problem:
            if allocator.refused(problem) and agreed.alone and step > saved_at:
                checkpoints.save(step, state, loader.state())  # it is whole: an evaluation donates nothing
            raise
        memory.trim()
        if metrics:
            log.evaluation(step, {**metrics, **stopping.add(step, metrics)})
            best.add(step, metrics)
            checkpoints.best_step = best.step
        return 0

    with checkpoints:  # however it ends, a save that was started is finished
        left_out = last_evaluated is not None and last_evaluated < first
        if left_out and schedule.due(schedule.evaluate_every, first):
            reason = evaluate_state()
        while step < schedule.stop_at and not stopping.is_due and not (reason := reason or agreed(request())):
            state, metrics = executables.step(state, next(loader))  # the old state's buffers are reused
            step += 1
            flight.add(step, metrics)
            if schedule.due(schedule.evaluate_every, step):
                flight.land()
                memory.trim()  # what steps left would sit under the evaluation's peak
                evaluated_at = step
                if reason := evaluate_state():
                    break
            late = by_clock and time.monotonic() >= next_save
            if late or schedule.due(schedule.save_every, step) or best.step == step:
                flight.land()
                saved_at = step
                began = time.monotonic()
                checkpoints.save(step, state, loader.state())
                log.saved(step)
                now = time.monotonic()
                next_save = now + max(SAVE_SECONDS, (now - began) / SAVE_SHARE)
                memory.trim()  # what evaluating and saving left in the heap would sit under the next step's peak
        flight.land()
        if step > evaluated_at and reason_now() in (0, TIME_IS_UP):
            reason = evaluate_state() or reason
        if step > saved_at:
            checkpoints.save(step, state, loader.state())
            log.saved(step)
    reason = reason_now()
    signal = reason if reason in NUMBERS else None
    early = stopping.is_due and step < schedule.steps
    return state, Ended(step, signal, reason == OVER_BUDGET, early)


def summed(
    batches: Iterator[Batch],
    evaluate: Callable[[Any, Batch], Any],
    params: Any,
    signal: Callable[[], int] = lambda: 0,
) -> dict[str, float]:
    """Returns sums over all batches, divided once: no mean of means.

    `validation_` is put before every name. A metric whose weight is zero in all batches is left out. Raises
    EvaluationStopped, between batches, once there is a `signal`.
    """
    totals: dict[str, tuple[float, float]] = {}
    between = memory.BetweenSteps()
    for batch in batches:
        if number := signal():
            raise EvaluationStopped(number)
        for name, (total, weight) in _on_host(evaluate(params, dict(batch))).items():
            old_total, old_weight = totals.get(name, (0.0, 0.0))
            totals[name] = old_total + float(total), old_weight + float(weight)
        if IN_FLIGHT.get(jax.default_backend()) == 1:
            between.settle()
    return {f"validation_{name}": total / weight for name, (total, weight) in totals.items() if weight}


def numbers_of(report: Mapping[str, Any]) -> dict[str, float]:
    """Returns a step's report as numbers: sums are divided, and left out where their weight is zero."""
    numbers = {}
    for name, value in _on_host(report).items():
        if not isinstance(value, tuple):
            numbers[name] = float(value)
        elif weight := float(value[1]):
            numbers[name] = float(value[0]) / weight
    return numbers


def _on_host(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the report in arrays of NumPy, a sum and its weight as a tuple.

    `device_get` begins copies to the host: 40 us each on a CPU, which has them already.
    """
    if jax.default_backend() != "cpu":
        return jax.device_get(dict(report))
    return {
        name: tuple(map(np.asarray, value)) if isinstance(value, tuple) else np.asarray(value)
        for name, value in report.items()
    }


class _InFlight:
    """Holds the metrics of the steps under way, and waits for the oldest when there are too many."""

    def __init__(self, log: Log, *, in_heap: bool = False) -> None:
        self._log = log
        limit = IN_FLIGHT.get(jax.default_backend(), 2)
        self._limit = 2 if in_heap else limit
        self._settle_every = (memory.LOOK_SECONDS if in_heap else 0.0) if limit == 1 else math.inf
        self._settle_next = 0.0 if limit == 1 else math.inf
        self._steps: deque[tuple[int, Report]] = deque()
        self._between = memory.BetweenSteps()

    def add(self, step: int, metrics: Report) -> None:
        self._steps.append((step, metrics))
        while len(self._steps) >= self._limit:
            self._finish(*self._steps.popleft())
        if (now := time.perf_counter()) >= self._settle_next:
            self._settle_next = now + self._settle_every
            self._between.settle()

    def land(self) -> None:
        """Waits for all steps under way."""
        while self._steps:
            self._finish(*self._steps.popleft())

    def _finish(self, step: int, metrics: Report) -> None:
        numbers = numbers_of(metrics)
        if numbers.get("scale", 0.0) > SMALLEST and not math.isfinite(numbers["gradient_norm"]):
            del numbers["gradient_norm"]  # an overflow of float16: the step was skipped, its scale is halved
        elif not math.isfinite(numbers["loss"]) or not math.isfinite(numbers["gradient_norm"]):
            raise StoppedError(
                f"step {step}: the loss is {numbers['loss']:g} and the gradient's norm {numbers['gradient_norm']:g}, so"
                " training stopped and saved nothing over the last good checkpoint. Continue from there with the same"
                " command and a lower --learning-rate in a new --run, or find the cause with --debug-nans"
            )
        self._log.step(step, numbers)
