"""How long a step takes, before it has run: a roofline with the chip's rates.

Dots at the rate of their precision, plus moving what does not stay in the cache, plus the first touch of the step's
temporaries, plus a fixed price per micro-batch. Good for ranking plans; `measure` says what it really is.
"""

from plimsoll.planner.types import Analysis, Rates, Static
from plimsoll.types import Plan

MOVES_PER_BYTE = 3.0
"""A temporary is written in the forward pass, read in the backward pass, and its gradient written."""


def step_seconds(plan: Plan, analysis: Analysis, static: Static, rates: Rates) -> float:
    """Of one optimizer step."""
    arithmetic = analysis.flops / rates.flops[plan.precision]
    gradient = static.parameter_bytes if plan.accumulation > 1 else 0
    activations = max(0, analysis.temp_bytes - gradient)
    moved = plan.accumulation * (MOVES_PER_BYTE * activations + 3 * gradient) + 3 * static.state_bytes
    first_touch = analysis.temp_bytes / rates.first_touch_bytes
    return arithmetic + moved / rates.copy_bytes + first_touch + plan.accumulation * rates.loop_seconds
