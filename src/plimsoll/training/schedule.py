"""Schedule of a session's evaluations, saves and end; the best evaluation, and the count of evaluations since it."""

from __future__ import annotations

import math
import time
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll.errors import RecipeError
from plimsoll.units import parse_seconds, whole_number

SINCE_BEST = "evaluations_since_best"
"""Name of the logged metric that counts the evaluations since the best one (`Patience`)."""
MOST_EVALUATIONS = 100
"""Largest default number of evaluations in a run. Runs of more than 100 epochs evaluate after every few epochs."""


@dataclass(frozen=True, kw_only=True)
class Last:
    """The last save or the last evaluation."""

    step: int
    """Step of the state that was saved or evaluated."""
    time: float
    """Time of `time.monotonic` at the end of the save or evaluation."""
    seconds: float = 0.0
    """Duration of the save or evaluation."""


@dataclass(frozen=True, kw_only=True)
class Every:
    """Interval between saves or between evaluations, in steps, in seconds, or both."""

    steps: float = 0
    """Interval in steps; 0 for no saves or evaluations by steps. May be fractional, as an epoch's steps may be."""
    seconds: float = math.inf
    """Interval in seconds; infinite for none by the clock. Infinite with several processes, whose clocks differ."""
    first_seconds: float | None = None
    """Seconds to the first save or evaluation; None if the first interval is like the others."""
    largest_share: float = math.inf
    """Largest duration of a save or evaluation, as a fraction of the interval. If it is longer, the interval grows."""

    @property
    def is_by_clock(self) -> bool:
        return self.seconds < math.inf

    def begin(self, step: int) -> Last:
        """Returns a fictitious save or evaluation, from which a session that begins now counts its first interval.

        Args:
            step: Step of the latest save or evaluation of earlier sessions; 0 if there is none.
        """
        head_start = 0.0 if self.first_seconds is None else self.seconds - self.first_seconds
        return Last(step=step, time=time.monotonic() - head_start)

    def is_due(self, step: int, last: Last) -> bool:
        """Returns True if a save or evaluation is due after a step."""
        if completes(self.steps, step):
            return True
        pause = max(self.seconds, last.seconds / self.largest_share)
        return time.monotonic() - last.time >= pause


def parse_every(text: str | int) -> Every:
    """Parses an interval: a number of steps like `500`, or a time like `10min`. Raises RecipeError for other text."""
    steps = whole_number(str(text))
    if steps is not None:
        return Every(steps=steps)
    seconds = parse_seconds(text)
    if seconds == 0:
        raise RecipeError("the time must be above 0")
    return Every(seconds=seconds)


def steps_between_evaluations(steps: int, per_epoch: float | None) -> float:
    """Returns the default number of steps between evaluations: one or more epochs, or a quarter of the run.

    The default is a quarter of the run if the length of an epoch is unknown.

    Args:
        steps: Steps of the run.
        per_epoch: Steps of an epoch; None if unknown.
    """
    if not per_epoch:
        return max(1, steps // 4)
    epochs = math.ceil(steps / per_epoch / MOST_EVALUATIONS)
    return per_epoch * max(1, epochs)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Schedule of a session's evaluations, saves and end. The last state is evaluated and saved in any case."""

    steps: int
    """Optimizer steps of the whole run."""
    last_step: int
    """Last step of this session: `steps`, or earlier with --max-steps."""
    seconds: float = math.inf
    """Seconds after which this session ends."""
    evaluate: Every = Every()
    """Interval of evaluations."""
    save: Every = Every()
    """Interval of saves."""
    best_by: str = "loss"
    """Validation metric that selects the best checkpoint: the lowest `loss`, or the highest value of another metric."""
    patience: int | None = None
    """Number of evaluations in a row without improvement after which training ends; None for no early end."""


def times(done: int, every: float) -> int:
    """Returns the number of intervals of `every` steps that are complete after `done` steps."""
    return int(done / every + 1e-9)


def completes(every: float, done: int) -> bool:
    """Returns True if step `done` completes an interval of `every` steps; False for an interval of 0."""
    return every > 0 and times(done, every) > times(done - 1, every)


def epochs_over(done: int, per_epoch: float, steps: int) -> int:
    """Returns the number of completed epochs after `done` of a run's `steps`.

    The steps of a run are rounded down from its epochs. So at the end of a run, an epoch that lacks less than one step
    counts as completed.
    """
    if done == steps:
        epochs = math.ceil(done / per_epoch - 1e-9)
        missing = epochs * per_epoch - done
        if missing < 1:
            return epochs
    return times(done, per_epoch)


def standing(metrics: Mapping[str, Any], best_by: str) -> float:
    """Returns the score of an evaluation; higher is better.

    Args:
        metrics: Means over the held-out set, with names that begin with `validation_`.
        best_by: Name of the metric, as `Schedule.best_by`.
    """
    value = float(metrics[f"validation_{best_by}"])
    return -value if best_by == "loss" else value


@dataclass
class Best:
    """The best evaluation so far. The earliest of equal evaluations counts, and a NaN never counts."""

    best_by: str = "loss"
    """Name of the metric, as `Schedule.best_by`."""
    step: int | None = None
    """Step of the best evaluation; None before the first."""
    validation_loss: float | None = None
    """Validation loss of the best evaluation."""
    score: float = -math.inf
    """Result of `standing` for the best evaluation."""

    def add(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Records the evaluation of a step, if it is better than all earlier ones."""
        score = standing(metrics, self.best_by)
        if score > self.score:
            self.step = step
            self.validation_loss = float(metrics["validation_loss"])
            self.score = score


def best_of(rows: Iterable[Mapping[str, Any]], saved_steps: Container[int], best_by: str) -> Best:
    """Returns the best logged evaluation of a run, among the steps that have a checkpoint.

    Args:
        rows: Logged rows of the run.
        saved_steps: Steps that have a checkpoint.
        best_by: Name of the metric, as `Schedule.best_by`.
    """
    best = Best(best_by)
    for row in rows:
        if "validation_loss" in row and row["step"] in saved_steps:
            best.add(row["step"], row)
    return best


@dataclass
class Patience:
    """Early stopping: counts the evaluations since the best one. A NaN never improves.

    Evaluations at intervals of `evaluate.steps` count; an evaluation at the end of a session (`--max-steps`) does not.
    So a run that was stopped or killed, and resumed, ends at the same step as an uninterrupted run. The count is not
    saved, but computed again from the logged evaluations.
    """

    schedule: Schedule
    best: float = -math.inf
    """Result of `standing` for the best evaluation."""
    since_best: int = 0
    """Number of evaluations since the best one."""

    def add(self, step: int, metrics: Mapping[str, Any]) -> dict[str, int]:
        """Counts the evaluation after a step, and returns the count as a metric for the log."""
        if self.schedule.patience is None or not completes(self.schedule.evaluate.steps, step):
            return {}
        score = standing(metrics, self.schedule.best_by)
        self.since_best += 1
        if score > self.best:
            self.best = score
            self.since_best = 0
        return {SINCE_BEST: self.since_best}

    def add_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Counts the evaluations among the logged rows of earlier sessions."""
        for row in rows:
            if "validation_loss" in row:
                self.add(row["step"], row)

    @property
    def is_over(self) -> bool:
        """True once the patience is exhausted, so that training should end."""
        return self.schedule.patience is not None and self.since_best >= self.schedule.patience
