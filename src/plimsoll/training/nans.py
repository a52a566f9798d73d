"""`--debug-nans`: the place of the first NaN, found by taking the step again, one operation at a time.

Training runs at full speed until a step's loss or gradient is not finite. The state before it is still there (the
step is compiled without donation, which costs a second copy of the state), so that step is taken again outside of
`jit` with `jax_debug_nans`, which stops at the first operation whose result is NaN.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from plimsoll.errors import StoppedError
from plimsoll.types import Batch

Step = Callable[[Any, Batch], tuple[Any, dict[str, Any]]]


class Watched:
    """A compiled step that raises StoppedError with the place of the first NaN, its traceback in the file `report`."""

    def __init__(self, step: Step, compiled: Step, report: Path) -> None:
        self._step, self._compiled, self._report = step, compiled, report

    def __call__(self, state: Any, batch: Batch) -> tuple[Any, dict[str, Any]]:
        new_state, metrics = self._compiled(state, batch)
        if all(math.isfinite(metrics[name]) for name in ("loss", "gradient_norm")):
            return new_state, metrics
        number = int(state["step"]) + 1
        trace = first_nan(self._step, state, batch)
        if trace is None:
            raise StoppedError(
                f"step {number}: the loss or the gradient is not finite, but the same step taken one operation at a"
                " time makes no NaN: it is an infinity, or an effect of the compiled order of sums. Nothing was saved"
                " over the last good checkpoint; lower --learning-rate in a new --run"
            )
        self._report.write_text("".join(traceback.format_list(trace)))
        place = trace[-1]
        raise StoppedError(
            f"step {number}: the first NaN is made in {place.name} ({place.filename}, line {place.lineno}):"
            f" `{place.line}`. The way there is in {self._report}. Nothing was saved over the last good checkpoint"
        )


def first_nan(step: Step, state: Any, batch: Batch) -> list[traceback.FrameSummary] | None:
    """Returns the calls that lead to the first operation whose result is NaN, the innermost last; None for no NaN."""
    try:
        with jax.debug_nans(True), jax.disable_jit():
            step(state, batch)
    except FloatingPointError as problem:
        frames = traceback.extract_tb(problem.__traceback__)[1:]
        library = str(Path(jax.__file__).parent)
        return [frame for frame in frames if not frame.filename.startswith(library)] or list(frames)
    return None
