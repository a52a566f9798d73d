"""Time measurements of a training session: steps, waiting for data, epochs."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from plimsoll.engine.training_run import TrainingRun
from plimsoll.recipes.parts import Prepared
from plimsoll.report.summary import Epoch
from plimsoll.training import allocator, memory
from plimsoll.training.schedule import completes, epochs_over, steps_between_evaluations
from plimsoll.types import Batch, Source


class TimedSource:
    """Wrapper of a data source. Measures how long training waits for batches, and how much memory the source holds.

    On an accelerator, earlier steps still run during that wait.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.waited_seconds = 0.0
        self.held_bytes: int | None = None
        """Bytes that stay allocated after the first batch was read; None before the first batch."""
        self._bytes_before = allocator.bytes_now()

    def __next__(self) -> Batch:
        start = time.monotonic()
        batch = next(self.source)
        self.waited_seconds += time.monotonic() - start
        if self.held_bytes is None:
            memory.trim()  # loading a tokenizer leaves freed memory in the heap, up to the tokenizer's own size
            self.held_bytes = max(0, allocator.bytes_now() - self._bytes_before)
        return batch

    def state(self) -> dict[str, Any]:
        return self.source.state()

    def close(self) -> None:
        self.source.close()


class Meter:
    """Times and rates of the steps since the last logged row."""

    def __init__(self, run: TrainingRun, source: TimedSource, *, seconds_before: float) -> None:
        self._run = run
        self._source = source
        self._seconds_before = seconds_before
        """Seconds of training in earlier sessions."""
        self._started = time.monotonic()
        self._step_began = self._started
        self._steps = 0
        self._step_seconds = 0.0
        self._waited_before = 0.0

    @property
    def elapsed_seconds(self) -> float:
        """Seconds of training in all sessions of the run."""
        return self._seconds_before + time.monotonic() - self._started

    @property
    def waited_share(self) -> float:
        """Fraction of this session's time in which training waited for data."""
        return self._source.waited_seconds / max(1e-9, time.monotonic() - self._started)

    def begin_step(self) -> None:
        """Starts the clock of the next step, to leave out the time of logging, evaluating and saving."""
        self._step_began = time.monotonic()

    def end_step(self) -> None:
        """Stops the clock of the current step, and starts that of the next step."""
        began = self._step_began
        self.begin_step()
        self._step_seconds += self._step_began - began
        self._steps += 1

    def row(self) -> dict[str, float]:
        """Returns times, throughput and memory for a row of metrics. Step times are means since the previous call."""
        # Compute mean times per step.
        seconds = self._step_seconds / self._steps
        waited = self._source.waited_seconds
        data_seconds = (waited - self._waited_before) / self._steps
        self._waited_before = waited
        self._step_seconds = 0.0
        self._steps = 0

        # Add throughput, memory and MFU (model FLOPs utilization). An MFU above 1 is left out: the machine's FLOP/s may
        # have been measured under load.
        spec = self._run.prepared.spec
        examples = self._run.recipe.effective_batch * spec.rate_per_example
        row = {
            "step_seconds": seconds,
            "data_seconds": data_seconds,
            "elapsed_seconds": self.elapsed_seconds,
            f"{spec.rate_unit}_per_second": examples / seconds if seconds else 0.0,
            "resident_bytes": memory.resident_bytes(),
            "peak_resident_bytes": memory.peak_resident_bytes(),
        }
        device = allocator.device_bytes()
        if device is not None:
            row |= {"device_bytes": device, "peak_device_bytes": allocator.peak_bytes()}
        flops = self._run.planned.step_flops
        machine_flops = self._run.planned.chip_flops
        if flops and machine_flops and flops <= seconds * machine_flops:
            row["mfu"] = flops / seconds / machine_flops
        return row


class Epochs:
    """Means of the training loss by epoch, for summaries at the ends of epochs and of the run.

    If evaluations are rarer than epochs, one summary covers all epochs since the previous summary.
    """

    def __init__(self, prepared: Prepared, *, step: int) -> None:
        self._steps = prepared.steps
        self._per_epoch = prepared.steps_per_epoch or 0.0
        self._every = max(self._per_epoch, evaluation_steps(prepared))
        self._number = self.over(step)
        self._began = time.monotonic()
        self._loss_sum = 0.0
        self._loss_count = 0
        self._pending: Epoch | None = None

    def over(self, step: int) -> int:
        """Returns the number of epochs completed after a step; 0 if the length of an epoch is unknown."""
        return epochs_over(step, self._per_epoch, self._steps) if self._per_epoch else 0

    def begun(self, step: int) -> float:
        """Returns the number of epochs after a step, with the fraction of the unfinished epoch; 0 if unknown."""
        return step / self._per_epoch if self._per_epoch else 0.0

    def add(self, step: int, loss: float, *, elapsed_seconds: float) -> None:
        """Adds the loss of a step. Makes a summary if the step ends the run, or an epoch that a summary is due for."""
        self._loss_sum += loss
        self._loss_count += 1
        number = self.over(step)
        is_end = completes(self._every, step) or step == self._steps
        if number == self._number or not is_end:
            return
        now = time.monotonic()
        self._pending = Epoch(
            number=number,
            epochs=max(self.over(self._steps), int(10 * self.begun(self._steps)) / 10),
            train_loss=self._loss_sum / self._loss_count,
            validation_loss=None,
            epoch_seconds=(now - self._began) / (number - self._number),
            elapsed_seconds=elapsed_seconds,
        )
        self._number = number
        self._began = now
        self._loss_sum = 0.0
        self._loss_count = 0

    def summary(self, validation_loss: float | None) -> Epoch | None:
        """Returns and forgets the latest summary; None if none was made since the previous call.

        Args:
            validation_loss: Loss of the latest evaluation, for the summary.
        """
        pending = self._pending
        self._pending = None
        return pending and replace(pending, validation_loss=validation_loss)


def evaluation_steps(prepared: Prepared) -> float:
    """Returns the default number of steps between evaluations, which may be fractional."""
    return prepared.evaluate_every or steps_between_evaluations(prepared.steps, prepared.steps_per_epoch)
