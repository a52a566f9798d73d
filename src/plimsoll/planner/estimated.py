"""Error of bytes that are estimated from a trace, compared with the bytes that a compiler reports."""

from __future__ import annotations

from plimsoll.planned import EstimateBand, Ledger

ON_ONE_DEVICE = 21, (0.87, 1.49)
"""Plans for one device that were both estimated and compiled: their number, and the lowest and highest ratio of the
estimated to the compiled bytes of a step beyond its state. 19 plans are for three cards (0.87 to 1.09) and 2 for a
tpu-v5e-1, of five recipes, on 2026-11-30 (jax 0.10.2). docs/results.md lists them."""
ON_SEVERAL = 32, (0.46, 1.73)
"""Plans for several devices that were both estimated and compiled: their number, and the lowest and highest ratio of
estimated to compiled bytes. 14 plans of the recipe `stories` are for a tpu-v5e-8 (2026-11-21), 18 for a tpu-v4-64
(2026-11-26)."""
TRACED = "temporaries"
"""Last word in the names of components that are estimated from a trace. Other components are exact or measured."""


def estimates_compared(devices: int) -> tuple[int, tuple[float, float]]:
    """Returns the number of plans with estimated and compiled bytes, and the lowest and highest ratio of the two."""
    return ON_ONE_DEVICE if devices == 1 else ON_SEVERAL


def estimate_band(ledger: Ledger, *, devices: int = 1) -> EstimateBand | None:
    """Returns the range in which the compiler's peak would lie, for a plan that was only traced; None if compiled.

    The highest peak of the range may exceed the budget.
    """
    if ledger.source != "estimated":
        return None

    plans, (least, most) = estimates_compared(devices)
    traced = sum(size for name, size in ledger.components.items() if name.endswith(TRACED))
    exact = ledger.predicted_peak_bytes - traced
    return EstimateBand(
        plans=plans,
        lowest_peak_bytes=round(exact + traced / most),
        highest_peak_bytes=round(exact + traced / least),
    )
