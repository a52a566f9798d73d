"""One recipe planned for several chips (`plimsoll plan --compare`), as a table."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll.planned import Planned
from plimsoll.report.layout import UNKNOWN, WIDTH, Cells, all_labelled, format_known_bytes, format_rate, known, table
from plimsoll.report.tables import plan_words, units_per_second
from plimsoll.units import format_bytes, format_count, format_seconds

MANY = 1e9
"""Number of tokens or examples for which `ComparedChip.price_of_many` gives the price of training."""


@dataclass(frozen=True, kw_only=True)
class ComparedChip:
    """A chip with its plan, or with the reason that it has no plan."""

    chip: str
    rate_unit: str
    """`tokens` or `examples`."""
    planned: Planned | None = None
    """The plan; None if no plan fits."""
    why_not: str = ""
    """Reason that no plan fits."""
    floor_bytes: int | None = None
    """Smallest predicted peak memory of any plan in bytes, if no plan fits; else None."""
    price_per_hour: float | None = None
    """Price per hour of all devices together, as the user gave it."""

    @property
    def needed_bytes(self) -> int | None:
        """Predicted peak memory of the plan in bytes; if no plan fits, `floor_bytes`."""
        return self.planned.peak_bytes if self.planned else self.floor_bytes

    @property
    def left_bytes(self) -> int | None:
        """Memory budget minus predicted peak, in bytes; None without a plan."""
        return self.planned.ledger.budget_bytes - self.planned.peak_bytes if self.planned else None

    @property
    def rate(self) -> float | None:
        """Predicted tokens or examples per second; None without a plan."""
        return units_per_second(self.planned) if self.planned else None

    @property
    def price_of_many(self) -> float | None:
        """Price of training on a billion tokens or examples at the predicted rate; None if unknown."""
        if self.price_per_hour is None or not self.rate:
            return None
        return self.price_per_hour * MANY / self.rate / 3600

    def to_dict(self) -> dict[str, Any]:
        """Returns the chip's entry in the output of `plimsoll plan --compare --json`."""
        return {
            "chip": self.chip,
            "fits": self.planned is not None,
            "why_not": self.why_not or None,
            "floor_bytes": self.floor_bytes,
            "left_bytes": self.left_bytes,
            f"{self.rate_unit}_per_second": self.rate,
            "price_per_hour": self.price_per_hour,
            f"price_of_a_billion_{self.rate_unit}": self.price_of_many,
            "plan": None if self.planned is None else self.planned.to_dict(),
        }

    @property
    def rate_words(self) -> str:
        return known(self.rate, lambda rate: format_rate(rate, self.rate_unit))

    @property
    def note(self) -> str:
        """Description of the plan and of its uncertainty, or the reason that no plan fits."""
        planned = self.planned
        if planned is None:
            return self.why_not
        words = [plan_words(planned.plan)]
        if planned.devices > 1:
            words.append(f"{planned.devices} devices")
        if planned.step_seconds_range:
            words.append(f"a step of {' to '.join(map(format_seconds, planned.step_seconds_range))}")
        if band := planned.estimate_band:
            lowest, highest = format_bytes(band.lowest_peak_bytes), format_bytes(band.highest_peak_bytes)
            words.append(f"estimated without a compiler: its peak may lie between {lowest} and {highest}")
        return ", ".join(words)


def compared_table(rows: Sequence[ComparedChip]) -> str:
    """Returns the output of `plimsoll plan --compare`: a line per chip, then each chip's plan or why no plan fits."""
    cells: Cells = {
        "chip": ("l", lambda row: row.chip),
        "fits": ("l", lambda row: "yes" if row.planned else "no"),
        "step": ("r", lambda row: known(row.planned and row.planned.step_seconds, format_seconds)),
        "rate": ("r", lambda row: row.rate_words),
        "peak": ("r", lambda row: format_known_bytes(row.needed_bytes)),
        "left": ("r", lambda row: format_known_bytes(row.left_bytes)),
        "bytes": ("l", lambda row: row.planned.ledger.source if row.planned else UNKNOWN),
    }
    ends = "bytes are of one device, rates of all of them; times are by the chips' rates, not timed"
    if any(row.price_per_hour is not None for row in rows):
        cells |= {
            "an hour": ("r", lambda row: known(row.price_per_hour, ",.2f")),
            f"1B {rows[0].rate_unit}": ("r", lambda row: known(row.price_of_many, ",.2f")),
        }
        ends += "; prices are the ones given, of all devices of a chip's name"
    notes = all_labelled((row.chip, row.note) for row in rows)
    titles = [f"{row.planned.recipe}: {format_count(row.planned.parameters)} parameters" for row in rows if row.planned]
    lines = [*titles[:1], "", *table(rows, cells).lines(indent=0), "", *notes, "", *textwrap.wrap(ends, WIDTH)]
    return "\n".join(lines)
