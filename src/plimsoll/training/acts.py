"""What a session does between steps: it evaluates and it saves. Each act knows when it is due.

A new act is a class like these, and a line in `loop.run_steps`, where the order is explained.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from plimsoll.training import allocator, memory
from plimsoll.training.checkpoints import Checkpoints
from plimsoll.training.phases import Phases
from plimsoll.training.reports import EvaluationStopped
from plimsoll.training.schedule import Best, Every, Last, Patience, completes
from plimsoll.training.step import State, evaluated
from plimsoll.training.stop import Stop
from plimsoll.types import Batch


class Batches(Protocol):
    """A `types.Source` as the loop uses it."""

    def __next__(self) -> Batch: ...
    def state(self) -> dict[str, Any]: ...


class Log(Protocol):
    """A receiver of what happens in a session."""

    phases: Phases

    def step(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def saved(self, step: int) -> None: ...


@dataclass(kw_only=True)
class Save:
    """Saving the state, and the position of the loader that belongs to it.

    Use it as a context: a save that was begun is finished.
    """

    every: Every
    checkpoints: Checkpoints
    loader: Batches
    """About to yield the batch that the state to be saved is for."""
    log: Log
    last: Last

    def __enter__(self) -> None:
        self.checkpoints.__enter__()

    def __exit__(self, *problem: Any) -> None:
        self.checkpoints.__exit__(*problem)

    def is_due(self, step: int) -> bool:
        """Returns whether the state after this step is to be saved."""
        return self.every.is_due(step, self.last)

    def is_missing(self, step: int) -> bool:
        """Returns whether the state after this step is not saved."""
        return step > self.last.step

    def run(self, step: int, state: State) -> None:
        """Saves the state after this step."""
        self.log.phases.begin("save")
        began = time.monotonic()
        self.checkpoints.save(step, state, self.loader.state())
        self.log.saved(step)
        ended = time.monotonic()
        self.last = Last(step=step, time=ended, seconds=ended - began)
        memory.trim()  # what is left in the heap would sit under the next step's peak
        self.log.phases.end(steps="save" if self.checkpoints.in_background else None)


@dataclass(kw_only=True)
class Evaluate:
    """Evaluating the state on the held-out set."""

    every: Every
    evaluate: Callable[[Any], Mapping[str, float]]
    """Function from parameters to metrics, none without a held-out set. Raises EvaluationStopped."""
    best: Best
    """The best evaluation so far, whose checkpoint is kept."""
    patience: Patience
    stop: Stop
    save: Save
    """What saves the state where memory does not suffice for an evaluation."""
    log: Log
    last: Last

    def was_left_out(self, step: int) -> bool:
        """Returns whether a signal ended the evaluation of the state that this session begins with."""
        return self.is_missing(step) and completes(self.every.steps, step)

    def is_due(self, step: int) -> bool:
        """Returns whether the state after this step is to be evaluated."""
        return self.every.is_due(step, self.last)

    def is_missing(self, step: int) -> bool:
        """Returns whether the state after this step is not evaluated."""
        return step > self.last.step

    def is_best(self, step: int) -> bool:
        """Returns whether the state after this step is the best so far."""
        return self.best.step == step

    def run(self, step: int, state: State) -> None:
        """Evaluates the state after this step, unless a signal ends the evaluation."""
        memory.trim()  # what steps left would sit under the evaluation's peak
        self.log.phases.begin("evaluate")
        try:
            metrics = self.evaluate(evaluated(state))
        except EvaluationStopped:
            metrics = {}
        except Exception as problem:
            # The state is whole: an evaluation donates nothing.
            if allocator.refused(problem) and self.stop.is_alone and self.save.is_missing(step):
                self.save.run(step, state)
            raise
        self.last = Last(step=step, time=time.monotonic())
        memory.trim()
        self.log.phases.end()

        if metrics:
            counted = self.patience.add(step, metrics)
            self.log.evaluation(step, {**metrics, **counted})
            self.best.add(step, metrics)
            self.save.checkpoints.best_step = self.best.step
