"""Units of the axes of a page's charts, and shares of a budget in words."""

from collections.abc import Sequence

from plimsoll.report.layout import UNKNOWN, format_share
from plimsoll.units import GIB, MIB, format_bytes

BYTES = (GIB, "GiB"), (MIB, "MiB")
TIMES = (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds")
STEP_TIMES = (1.0, "seconds"), (1e-3, "ms")


def unit_of(largest: float, units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """Returns the first of the units, each a size with its name, of which there are three or more; else the last."""
    return next((unit for unit in units if largest >= 3 * unit[0]), units[-1])


def used_of(peak: float | None, budget: int | None) -> str:
    """Returns `1.5 GiB of 2.0 GiB (75.0 %)`, or that it is unknown."""
    if peak is None or not budget:
        return UNKNOWN
    return f"{format_bytes(peak)} of {format_bytes(budget)} ({format_share(peak, budget)})"
