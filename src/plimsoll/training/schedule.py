"""Steps after which a session evaluates, saves and stops; early stopping, when evaluations bring nothing better."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

FIRST_SAVE_SECONDS, SAVE_SECONDS, SAVE_SHARE = 60.0, 300.0, 0.05
"""Seconds to the first save by the clock, and from any save to the next; longer where saving would take a larger share
of the time."""
SINCE_BEST = "evaluations_since_best"
"""Name of the count of `EarlyStopping` in the logged row of an evaluation."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Steps after which to stop, evaluate and save; all in optimizer steps."""

    steps: int
    """Length of the whole run."""
    stop_at: int
    """Last step of this session: `steps`, or earlier with --max-steps."""
    stop_after_seconds: float = math.inf
    evaluate_every: float = 0
    """Steps between evaluations; 0: at the end only. An epoch need not be a whole number of steps."""
    save_every: int = 0
    save_by_clock: bool = False
    """Whether to save by the time since the last save, too; not of several processes, whose clocks differ."""
    best_by: str = "loss"
    """Metric that chooses the best checkpoint: the lowest loss, or the highest value of any other."""
    patience: int | None = None
    """Evaluations in a row without a better one after which training ends; None for never."""

    def due(self, every: float, done: int) -> bool:
        return done == self.stop_at or completes(every, done)


def standing(metrics: Mapping[str, Any], best_by: str) -> float:
    """Returns what an evaluation is compared by; higher is better.

    Args:
        metrics: Means over the held-out set, named with `validation_`.
        best_by: Metric as in `Schedule`.
    """
    value = float(metrics[f"validation_{best_by}"])
    return -value if best_by == "loss" else value


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


@dataclass
class Best:
    """The best evaluation so far, of a state that was saved. The earliest of those that are equal; never a NaN."""

    best_by: str = "loss"
    """Metric as in `Schedule`."""
    step: int | None = None
    validation_loss: float | None = None
    score: float = -math.inf

    def add(self, step: int, metrics: Mapping[str, Any]) -> bool:
        """Returns whether the evaluation of a step is better than those before."""
        score = standing(metrics, self.best_by)
        if not score > self.score:
            return False
        self.step = step
        self.validation_loss = float(metrics["validation_loss"])
        self.score = score
        return True


def best_of(rows: Iterable[Mapping[str, Any]], saved_steps: Container[int], best_by: str) -> Best:
    """Returns the best evaluation among the logged rows of a run, of a step whose checkpoint is there."""
    best = Best(best_by)
    for row in rows:
        if "validation_loss" in row and row["step"] in saved_steps:
            best.add(row["step"], row)
    return best


@dataclass
class EarlyStopping:
    """Count of the evaluations since the best one, by which training ends early. A NaN is never better.

    Only evaluations after each `evaluate_every` steps count: one at the end of a session (`--max-steps`) does not. So a
    run that is stopped or killed, and continued, ends at the same step as one that is not. The count is kept nowhere:
    the logged rows of the evaluations have all that it needs.
    """

    schedule: Schedule
    best: float = -math.inf
    """What the best evaluation was compared by."""
    since_best: int = 0

    def add(self, done: int, metrics: Mapping[str, Any]) -> dict[str, int]:
        """Counts the evaluation after step `done`, and returns what its logged row gets."""
        if self.schedule.patience is None or not completes(self.schedule.evaluate_every, done):
            return {}
        now = standing(metrics, self.schedule.best_by)
        better = now > self.best
        self.best, self.since_best = (now, 0) if better else (self.best, self.since_best + 1)
        return {SINCE_BEST: self.since_best}

    def add_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Counts the evaluations among the rows that earlier sessions have logged."""
        for row in rows:
            if "validation_loss" in row:
                self.add(row["step"], row)

    @property
    def is_due(self) -> bool:
        """True once training is to end."""
        return self.schedule.patience is not None and self.since_best >= self.schedule.patience
