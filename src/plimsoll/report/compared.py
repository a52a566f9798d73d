"""One recipe planned for several chips (`plimsoll plan --compare`): a table and a picture."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plimsoll.planned import Planned
from plimsoll.report.layout import UNKNOWN, WIDTH, all_labelled, columns, format_known_bytes, format_rate, known
from plimsoll.report.picture import BAR, INK, LINE, ROOM, bar_axes, byte_axis
from plimsoll.report.tables import plan_words
from plimsoll.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MANY = 1e9
"""Tokens or examples, of which the price is said."""


@dataclass(frozen=True, kw_only=True)
class ComparedChip:
    """A chip and its plan, or why there is none."""

    chip: str
    rate_unit: str
    planned: Planned | None = None
    why_not: str = ""
    floor_bytes: int | None = None
    """Smallest peak that was found, where nothing fits."""
    memory_bytes: int | None = None
    """Bytes of one device that a run can use; None for this machine, where it depends on what else runs."""
    price_per_hour: float | None = None
    """Price of all devices together, as the user gave it."""

    @property
    def left_bytes(self) -> int | None:
        if self.planned is None:
            return None
        return self.planned.ledger.budget_bytes - self.planned.ledger.predicted_peak_bytes

    @property
    def rate(self) -> float | None:
        """Tokens, or examples, per second."""
        if self.planned is None or not self.planned.step_seconds:
            return None
        tokens = self.planned.tokens_per_step
        return (self.planned.examples_per_step if tokens is None else tokens) / self.planned.step_seconds

    @property
    def price_of_many(self) -> float | None:
        """Price of a billion of them, at that rate."""
        if self.price_per_hour is None or not self.rate:
            return None
        return self.price_per_hour * MANY / self.rate / 3600

    def to_dict(self) -> dict[str, Any]:
        """Returns what `--json` prints."""
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


def compared_table(rows: Sequence[ComparedChip]) -> str:
    """Returns what `plimsoll plan --compare` prints: a line per chip, then its plan or why nothing fits."""
    unit = rows[0].rate_unit
    header = ["chip", "fits", "micro-batch", "step", f"{unit}/s", "peak", "left", "bytes"]
    priced = any(row.price_per_hour is not None for row in rows)
    header += ["an hour", f"1B {unit}"] if priced else []
    table = [header]
    for row in rows:
        planned = row.planned
        if planned is None:
            cells = ["no", UNKNOWN, UNKNOWN, UNKNOWN, format_known_bytes(row.floor_bytes), UNKNOWN, UNKNOWN]
        else:
            cells = [
                "yes",
                f"{planned.plan.micro_batch} x {planned.plan.accumulation}",
                known(planned.step_seconds or None, format_seconds),
                UNKNOWN if row.rate is None else format_rate(row.rate, "").removesuffix(" /s"),
                format_bytes(planned.ledger.predicted_peak_bytes),
                format_known_bytes(row.left_bytes),
                planned.ledger.source,
            ]
        prices = [known(price, ",.2f") for price in (row.price_per_hour, row.price_of_many)]
        table.append([row.chip, *cells, *(prices if priced else [])])
    lines = columns(table, align="llrrrrrlrr"[: len(header)], indent=0)
    ends = "bytes are of one device, rates of all of them; times are by the chips' rates, not timed"
    ends += "; prices are the ones given, of all devices of a chip's name" if priced else ""
    title = _title([row.planned for row in rows])
    notes = all_labelled((row.chip, _note(row)) for row in rows)
    return "\n".join([*title, *lines, "", *notes, "", *textwrap.wrap(ends, WIDTH)])


def _title(plans: Sequence[Planned | None]) -> list[str]:
    """Returns the recipe with its size, from the first plan; nothing if there is no plan."""
    first = next((planned for planned in plans if planned is not None), None)
    if first is None:
        return []
    size, batch = format_count(first.parameters), first.plan.effective_batch
    return [f"{first.recipe}: {size} parameters, effective batch {batch} everywhere\n"]


def _note(row: ComparedChip) -> str:
    """Returns the plan in words and how far an estimate may be off, or why there is no plan."""
    planned = row.planned
    if planned is None:
        return row.why_not
    devices = f"{planned.devices} devices" if planned.devices > 1 else ""
    text = ", ".join(filter(None, (plan_words(planned.plan), devices, _span(planned))))
    band = planned.estimate_band
    if band is None:
        return text
    lowest, highest = (format_bytes(band[f"{end}_peak_bytes"]) for end in ("lowest", "highest"))
    over = band["highest_peak_bytes"] - planned.ledger.budget_bytes
    beyond = f", which would be {format_bytes(over)} too much" if over > 0 else ""
    return f"{text}. Estimated without a compiler: its peak may lie between {lowest} and {highest}{beyond}"


def _span(planned: Planned) -> str:
    """Returns how long a step may take, where that is estimated; empty where it was timed or is not known."""
    if planned.step_seconds_range is None:
        return ""
    least, most = map(format_seconds, planned.step_seconds_range)
    return f"a step of {least} to {most}"


def compared_figure(rows: Sequence[ComparedChip]) -> Figure:
    """Returns a figure with two bars per chip: its memory with the plan's share of it, and its speed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 1.7 + 0.5 * len(rows)), layout="constrained", facecolor="white")
    memory, speed = figure.subplots(1, 2, sharey=True)
    _draw_memory(memory, rows)
    rates = [row.rate or 0.0 for row in rows]
    for at, (row, rate) in enumerate(zip(rows, rates, strict=True)):
        speed.barh(at, rate, height=0.34, color=BAR, zorder=3)
        text = format_rate(rate, row.rate_unit) if rate else "no plan, or no rate known"
        speed.text(rate, at, f"  {text}", va="center", fontsize=8, color=INK)
    speed.set_xlim(0, 1.45 * max([*rates, 1e-9]))
    speed.xaxis.set_major_formatter(lambda value, _position: format_count(value))
    speed.locator_params(axis="x", nbins=5)
    speed.set_title("how fast, by the chips' rates", loc="left", fontsize=10, color=INK)
    bar_axes(speed, x_label=f"{rows[0].rate_unit} per second, all devices")
    memory.set_yticks(range(len(rows)), [row.chip for row in rows], fontsize=9, color=INK)
    memory.set_ylim(len(rows) - 0.4, -0.6)
    return figure


def _draw_memory(axes: Axes, rows: Sequence[ComparedChip]) -> None:
    """Draws each chip's budget as a wide bar, and what the plan (or the smallest one found) needs as a narrow one."""
    sizes = [
        (row.floor_bytes or 0, row.memory_bytes or 0)
        if row.planned is None
        else (row.planned.ledger.predicted_peak_bytes, row.planned.ledger.budget_bytes)
        for row in rows
    ]
    largest = max(1, *(size for pair in sizes for size in pair))
    unit, unit_name = byte_axis(largest)
    for at, (row, (size, budget)) in enumerate(zip(rows, sizes, strict=True)):
        fits = row.planned is not None
        axes.barh(at, budget / unit, height=0.6, color=ROOM, zorder=2)
        colour, edge = (BAR, BAR) if fits else ("white", LINE)
        axes.barh(at, size / unit, height=0.34, color=colour, edgecolor=edge, zorder=3)
        if budget:
            axes.plot([budget / unit] * 2, [at - 0.36, at + 0.36], color=LINE, linewidth=1.6, zorder=4)
        text = format_bytes(size) if size else "unknown"
        text = text if fits else f"{text}: does not fit"
        end = (max(size, budget) + 0.01 * largest) / unit
        axes.text(end, at, f" {text}", va="center", fontsize=8, color=INK)
    axes.set_xlim(0, 1.45 * largest / unit)
    axes.set_title("what the plan takes; red is the budget", loc="left", fontsize=10, color=INK)
    bar_axes(axes, x_label=f"{unit_name} of one device")
