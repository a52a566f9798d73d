"""`--debug-nans`: finds the operation that makes the first NaN."""

from __future__ import annotations

import dataclasses
import math
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from plimsoll.engine.program import functions_here
from plimsoll.engine.training_run import TrainingRun
from plimsoll.errors import StoppedError
from plimsoll.training.program import Executables
from plimsoll.types import Batch

Step = Callable[[Any, Batch], tuple[Any, dict[str, Any]]]


def watched_for_nan(run: TrainingRun, executables: Executables) -> Executables:
    """Returns the executables with a step that stops at a NaN. The compiled step must not donate its state."""
    functions = functions_here(run.recipe, run.plan, run.planned.step_options, steps=run.prepared.steps)
    step = stopping_at_nan(functions.take_step, executables.step, run.folder.path / "nan.txt")
    return dataclasses.replace(executables, step=step)


def stopping_at_nan(step: Step, compiled: Step, report: Path) -> Step:
    """Returns a step for `--debug-nans`, which raises StoppedError with the source line of the first NaN.

    Training runs at full speed until a step's loss or gradient is not finite. Then the step is repeated outside of
    `jit` with `jax_debug_nans`, which stops at the first operation whose result is NaN. The old state still exists,
    because the step does not donate it (`StepOptions.donates`).

    Args:
        step: The step as a Python function.
        compiled: The same step, compiled.
        report: Path of the file for the traceback.
    """

    def watched(state: Any, batch: Batch) -> tuple[Any, dict[str, Any]]:
        new_state, metrics = compiled(state, batch)
        if all(math.isfinite(metrics[name]) for name in ("loss", "gradient_norm")):
            return new_state, metrics
        number = int(state["step"]) + 1
        try:
            with jax.debug_nans(True), jax.disable_jit():
                step(state, batch)
        except FloatingPointError as problem:
            frames = traceback.extract_tb(problem.__traceback__)[1:]
        else:
            raise StoppedError(
                f"step {number}: the loss or the gradient is not finite, but the same step taken one operation at a"
                " time makes no NaN: a value is infinite, or the compiled step adds in another order. Nothing was saved"
                " over the last good checkpoint: continue from it by `plimsoll resume` with a lower --learning-rate"
            )
        library = str(Path(jax.__file__).parent)
        frames = [frame for frame in frames if not frame.filename.startswith(library)] or list(frames)
        report.write_text("".join(traceback.format_list(frames)))
        place = frames[-1]
        raise StoppedError(
            f"step {number}: the first NaN is made in {place.name} ({place.filename}, line {place.lineno}):"
            f" `{place.line}`. The traceback is in {report}. Nothing was saved over the last good checkpoint"
        )

    return watched
