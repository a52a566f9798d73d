"""How far bytes of a plan that no compiler has seen may be from what a compiler says: the error of a trace."""

from __future__ import annotations

from plimsoll.planned import EstimateBand, Ledger

ON_ONE_DEVICE = 21, (0.87, 1.49)
"""Number of estimated plans that were compared with a compiler, and the lowest and highest of them: what a step needs
beyond its state, as estimated, over what the compiler reported. 19 for three cards (0.87 to 1.09) and 2 for a
tpu-v5e-1, of five recipes, on 2026-11-30 (jax 0.10.2); docs/chips.md lists them."""
ON_SEVERAL = 32, (0.46, 1.73)
"""The same for a tpu-v5e-8 and a tpu-v4-64: 14 and 18 on 2026-11-21 and 2026-11-26, of `stories`."""
TRACED = "temporaries"
"""End of the names of components that are counted in a traced function; all others are exact, or measured."""


def estimates_compared(devices: int) -> tuple[int, tuple[float, float]]:
    """Returns the number of estimated plans that were compared with a compiler, and the lowest and highest ratio."""
    return ON_ONE_DEVICE if devices == 1 else ON_SEVERAL


def estimate_band(ledger: Ledger, *, devices: int = 1) -> EstimateBand | None:
    """Returns the range of the compiler's bytes for an estimated ledger; None for one that was compiled.

    The highest peak may be over the budget.
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
