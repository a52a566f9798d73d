"""The one JSON line that each side of a comparison of trainings prints last. Standard library only."""

import json
import statistics
from collections.abc import Sequence

from peers.programs import resident_bytes

UNTIMED_STEPS = 20
"""Left out of the timing: compilation, first touch of memory, warm caches."""
FINAL_STEPS = 20
"""The final loss is the mean of this many last steps: one step's batch is too noisy to compare."""


def result_line(
    *,
    losses: Sequence[float],
    step_seconds: Sequence[float],
    tokens_per_step: int,
    versions: dict[str, str],
    peak_bytes: int | None = None,
) -> str:
    """Returns the line. Both sequences have one entry per step.

    Args:
        losses: Mean cross-entropy over the predicted tokens of the effective batch, in nats, before the update.
        step_seconds: From the end of one step to the end of the next: fetching data and logging count.
        tokens_per_step: Predicted tokens of the effective batch.
        versions: Releases of the libraries that trained.
        peak_bytes: The VmHWM of the process that trained, where that is not the one that calls this.
    """
    timed = step_seconds[min(UNTIMED_STEPS, len(step_seconds) // 3) :]  # short dry runs are timed as well
    step_median = statistics.median(timed)
    result = {
        "tokens_per_second": tokens_per_step / step_median,
        "tokens_per_second_mean": tokens_per_step / statistics.fmean(timed),
        "step_seconds": step_median,
        "steps_timed": len(timed),
        "peak_resident_bytes": resident_bytes("VmHWM") if peak_bytes is None else peak_bytes,
        "first_loss": losses[0],
        "final_loss": statistics.fmean(losses[-FINAL_STEPS:]),
        "losses": list(losses),
        "versions": versions,
    }
    return json.dumps(result)
