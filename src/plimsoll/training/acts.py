"""Actions between steps: evaluating and saving. Each action decides when it is due.

A new action is a class like `Save` and `Evaluate`, and a line in `loop.run_steps`, which explains their order.
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
    """Data loader of the training loop: the methods of `types.Source` that the loop calls."""

    def __next__(self) -> Batch: ...
    def state(self) -> dict[str, Any]: ...


class Log(Protocol):
    """Receiver of a session's events: finished steps, evaluations, saved checkpoints."""

    phases: Phases

    def step(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def saved(self, step: int) -> None: ...


@dataclass(kw_only=True)
class Save:
    """Action of saving the state together with the position of the data loader.

    Use it as a context manager, which waits at its end for a save in the background.
    """

    every: Every
    checkpoints: Checkpoints
    loader: Batches
    """Data loader, about to yield the batch of the state's next step."""
    log: Log
    last: Last

    def __enter__(self) -> None:
        self.checkpoints.__enter__()

    def __exit__(self, *problem: Any) -> None:
        self.checkpoints.__exit__(*problem)

    def is_due(self, step: int) -> bool:
        """Returns True if the schedule asks for a save after this step."""
        return self.every.is_due(step, self.last)

    def is_missing(self, step: int) -> bool:
        """Returns True if the state after this step is not saved yet."""
        return step > self.last.step

    def run(self, step: int, state: State) -> None:
        """Saves the state after this step."""
        self.log.phases.begin("save")
        began = time.monotonic()
        self.checkpoints.save(step, state, self.loader.state())
        self.log.saved(step)
        ended = time.monotonic()
        self.last = Last(step=step, time=ended, seconds=ended - began)
        memory.trim()  # memory left in the heap would add to the next step's peak
        self.log.phases.end(steps="save" if self.checkpoints.in_background else None)


@dataclass(kw_only=True)
class Evaluate:
    """Action of evaluating the state on the held-out set."""

    every: Every
    evaluate: Callable[[Any], Mapping[str, float]]
    """Function from parameters to metrics; an empty mapping without a held-out set. Raises EvaluationStopped."""
    best: Best
    """Best evaluation so far. The checkpoint of its step is kept."""
    patience: Patience
    stop: Stop
    save: Save
    """Save action. It runs when an evaluation runs out of memory and the state is not saved yet."""
    log: Log
    last: Last

    def was_left_out(self, step: int) -> bool:
        """Returns True if the evaluation of this session's initial state is missing, because a signal stopped it."""
        return self.is_missing(step) and completes(self.every.steps, step)

    def is_due(self, step: int) -> bool:
        """Returns True if the schedule asks for an evaluation after this step."""
        return self.every.is_due(step, self.last)

    def is_missing(self, step: int) -> bool:
        """Returns True if the state after this step is not evaluated yet."""
        return step > self.last.step

    def is_best(self, step: int) -> bool:
        """Returns True if the evaluation after this step is the best so far."""
        return self.best.step == step

    def run(self, step: int, state: State) -> None:
        """Evaluates the state after this step, unless a signal ends the evaluation."""
        memory.trim()  # memory left by steps would add to the evaluation's peak
        self.log.phases.begin("evaluate")
        try:
            metrics = self.evaluate(evaluated(state))
        except EvaluationStopped:
            metrics = {}
        except Exception as problem:
            # Out of memory: save before the process ends. The state is intact, because an evaluation donates nothing.
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
