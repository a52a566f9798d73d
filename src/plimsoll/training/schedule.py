"""When a session evaluates, saves and ends; which evaluation is the best, and how many since then were no better."""

from __future__ import annotations

import math
import time
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll.errors import RecipeError
from plimsoll.units import parse_seconds, whole_number

SINCE_BEST = "evaluations_since_best"
"""Name of the count of `Patience` in the logged row of an evaluation."""
MOST_EVALUATIONS = 100
"""Evaluations of each so many epochs, at most, that a run has by default."""


@dataclass(frozen=True, kw_only=True)
class Last:
    """The last time that something was done between steps."""

    step: int
    time: float
    """Time of `time.monotonic` at which it ended."""
    seconds: float = 0.0
    """Time it took."""


@dataclass(frozen=True, kw_only=True)
class Every:
    """How often something is done between steps: after so many steps, and after so much time."""

    steps: float = 0
    """0: not by steps. An epoch need not be a whole number of them."""
    seconds: float = math.inf
    """Infinite: not by the clock. Several processes have several clocks, so theirs is infinite."""
    first_seconds: float | None = None
    """Time to the first, if it is another one."""
    largest_share: float = math.inf
    """Share of the time that it may take by the clock: it is done less often where it would take more."""

    @property
    def is_by_clock(self) -> bool:
        return self.seconds < math.inf

    def begin(self, step: int) -> Last:
        """Returns the last time of a session that begins now, where `step` was the last one."""
        head_start = 0.0 if self.first_seconds is None else self.seconds - self.first_seconds
        return Last(step=step, time=time.monotonic() - head_start)

    def is_due(self, step: int, last: Last) -> bool:
        """Returns whether it is to be done after a step."""
        if completes(self.steps, step):
            return True
        pause = max(self.seconds, last.seconds / self.largest_share)
        return time.monotonic() - last.time >= pause


def parse_every(text: str | int) -> Every:
    """Parses how often something is done: `500` steps, or a time like `10min`. Raises RecipeError otherwise."""
    steps = whole_number(str(text))
    if steps is not None:
        return Every(steps=steps)
    seconds = parse_seconds(text)
    if seconds == 0:
        raise RecipeError("the time must be above 0")
    return Every(seconds=seconds)


def steps_between_evaluations(steps: int, per_epoch: float | None) -> float:
    """Returns the steps between the evaluations of a run by default: by epochs if their steps are known."""
    if not per_epoch:
        return max(1, steps // 4)
    epochs = math.ceil(steps / per_epoch / MOST_EVALUATIONS)
    return per_epoch * max(1, epochs)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When a session evaluates, saves and ends. It evaluates and saves at its end in any case."""

    steps: int
    """Optimizer steps of the whole run."""
    last_step: int
    """Last step of this session: `steps`, or earlier with --max-steps."""
    seconds: float = math.inf
    """Time after which this session ends."""
    evaluate: Every = Every()
    save: Every = Every()
    best_by: str = "loss"
    """Metric that chooses the best checkpoint: the lowest loss, or the highest value of any other."""
    patience: int | None = None
    """Evaluations in a row without a better one after which training ends; None for never."""


def times(done: int, every: float) -> int:
    """Returns how often `every` steps are over."""
    return int(done / every + 1e-9)


def completes(every: float, done: int) -> bool:
    """Returns whether step `done` completes another `every` steps; False where that is 0."""
    return every > 0 and times(done, every) > times(done - 1, every)


def epochs_over(done: int, per_epoch: float, steps: int) -> int:
    """Returns the number of epochs that are over after `done` of a run's `steps`.

    A run's steps are rounded down from its epochs, so at its end an epoch counts that lacks less than a step.
    """
    if done == steps:
        epochs = math.ceil(done / per_epoch - 1e-9)
        missing = epochs * per_epoch - done
        if missing < 1:
            return epochs
    return times(done, per_epoch)


def standing(metrics: Mapping[str, Any], best_by: str) -> float:
    """Returns what an evaluation is compared by; higher is better.

    Args:
        metrics: Means over the held-out set, named with `validation_`.
        best_by: Metric as in `Schedule`.
    """
    value = float(metrics[f"validation_{best_by}"])
    return -value if best_by == "loss" else value


@dataclass
class Best:
    """The best evaluation so far, of a state that was saved. The earliest of those that are equal; never a NaN."""

    best_by: str = "loss"
    """Metric as in `Schedule`."""
    step: int | None = None
    validation_loss: float | None = None
    score: float = -math.inf

    def add(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Takes the evaluation of a step, if it is better than those before."""
        score = standing(metrics, self.best_by)
        if score > self.score:
            self.step = step
            self.validation_loss = float(metrics["validation_loss"])
            self.score = score


def best_of(rows: Iterable[Mapping[str, Any]], saved_steps: Container[int], best_by: str) -> Best:
    """Returns the best evaluation among the logged rows of a run, of a step whose checkpoint is there."""
    best = Best(best_by)
    for row in rows:
        if "validation_loss" in row and row["step"] in saved_steps:
            best.add(row["step"], row)
    return best


@dataclass
class Patience:
    """Count of the evaluations since the best one, by which training ends early. A NaN is never better.

    Only evaluations after each `evaluate.steps` count: one at the end of a session (`--max-steps`) does not. So a run
    that is stopped or killed, and continued, ends at the same step as one that is not. The count is kept nowhere: the
    logged rows of the evaluations have all that it needs.
    """

    schedule: Schedule
    best: float = -math.inf
    """What the best evaluation was compared by."""
    since_best: int = 0

    def add(self, step: int, metrics: Mapping[str, Any]) -> dict[str, int]:
        """Counts the evaluation after a step, and returns what its logged row gets."""
        if self.schedule.patience is None or not completes(self.schedule.evaluate.steps, step):
            return {}
        score = standing(metrics, self.schedule.best_by)
        self.since_best += 1
        if score > self.best:
            self.best = score
            self.since_best = 0
        return {SINCE_BEST: self.since_best}

    def add_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Counts the evaluations among the rows that earlier sessions have logged."""
        for row in rows:
            if "validation_loss" in row:
                self.add(row["step"], row)

    @property
    def is_over(self) -> bool:
        """True once training is to end."""
        return self.schedule.patience is not None and self.since_best >= self.schedule.patience
