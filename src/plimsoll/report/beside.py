"""A recipe on several chips side by side, as plain text and as a picture: what `plimsoll plan --compare` shows."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from plimsoll.planned import Planned
from plimsoll.report.layout import UNKNOWN, WIDTH, columns, format_known_bytes, format_rate, labelled
from plimsoll.report.picture import BAR, INK, LINE, QUIET_INK, ROOM, byte_axis, quieten, require_picture, written
from plimsoll.report.tables import plan_words
from plimsoll.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Row(Protocol):
    """A chip and its plan, or why there is none."""

    @property
    def chip(self) -> str: ...
    @property
    def rate_unit(self) -> str: ...
    @property
    def planned(self) -> Planned | None: ...
    @property
    def why_not(self) -> str: ...
    @property
    def floor_bytes(self) -> int | None: ...
    @property
    def memory_bytes(self) -> int | None: ...
    @property
    def left_bytes(self) -> int | None: ...
    @property
    def rate(self) -> float | None: ...
    @property
    def price_per_hour(self) -> float | None: ...
    @property
    def price_of_many(self) -> float | None: ...


def beside_table(rows: Sequence[Row]) -> str:
    unit = rows[0].rate_unit
    header = ["chip", "fits", "micro-batch", "step", f"{unit}/s", "peak", "left", "bytes"]
    priced = any(row.price_per_hour is not None for row in rows)
    header += ["an hour", f"1B {unit}"] if priced else []
    lines = columns([header, *(_cells(row, priced) for row in rows)], align="llrrrrrlrr"[: len(header)], indent=0)
    planned = next((row.planned for row in rows if row.planned is not None), None)
    if planned is not None:
        size, batch = format_count(planned.parameters), planned.plan.effective_batch
        lines.insert(0, f"{planned.recipe}: {size} parameters, effective batch {batch} everywhere\n")
    notes = [line for row in rows for line in labelled(row.chip, _note(row))]
    ends = "bytes are of one device, rates of all of them; times are by the chips' rates, not timed"
    paid = "; prices are the ones given, of all devices of a chip's name" if priced else ""
    return "\n".join([*lines, "", *notes, "", *textwrap.wrap(ends + paid, WIDTH)])


def _cells(row: Row, priced: bool) -> list[str]:
    planned = row.planned
    if planned is None:
        cells = ["no", UNKNOWN, UNKNOWN, UNKNOWN, format_known_bytes(row.floor_bytes), UNKNOWN, UNKNOWN]
    else:
        cells = [
            "yes",
            f"{planned.plan.micro_batch} x {planned.plan.accumulation}",
            format_seconds(planned.step_seconds) if planned.step_seconds else UNKNOWN,
            _number(row.rate),
            format_bytes(planned.ledger.predicted_peak_bytes),
            format_known_bytes(row.left_bytes),
            planned.ledger.source,
        ]
    return [row.chip, *cells, *([_price(row.price_per_hour), _price(row.price_of_many)] if priced else [])]


def _number(rate: float | None) -> str:
    return UNKNOWN if rate is None else format_rate(rate, "").removesuffix(" /s")


def _price(price: float | None) -> str:
    return UNKNOWN if price is None else f"{price:,.2f}"


def _note(row: Row) -> str:
    """What the plan is, or why there is none; and how far an estimate may be from the truth."""
    planned = row.planned
    if planned is None:
        return row.why_not
    devices = f", {planned.devices} devices" if planned.devices > 1 else ""
    text = f"{plan_words(planned.plan)}{devices}"
    band = planned.estimate_band
    if band is None:
        return text
    lowest, highest = (format_bytes(band[f"{end}_peak_bytes"]) for end in ("lowest", "highest"))
    over = band["highest_peak_bytes"] - planned.ledger.budget_bytes
    beyond = f", which would be {format_bytes(over)} too much" if over > 0 else ""
    return f"{text}. Estimated, no compiler was asked: its peak may lie between {lowest} and {highest}{beyond}"


def beside_picture(rows: Sequence[Row], path: Path | str) -> Path:
    """Draws them into `path`, a .png or .svg, and returns the path."""
    path = require_picture(path)
    return written(beside_figure(rows), path)


def beside_figure(rows: Sequence[Row]) -> Figure:
    """Two bars a chip: its memory with what the plan takes of it, and how fast it is."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 1.7 + 0.5 * len(rows)), layout="constrained", facecolor="white")
    memory, speed = figure.subplots(1, 2, sharey=True)
    _draw_memory(memory, rows)
    _draw_speed(speed, rows)
    memory.set_yticks(range(len(rows)), [row.chip for row in rows], fontsize=9, color=INK)
    memory.set_ylim(len(rows) - 0.4, -0.6)
    return figure


def _draw_memory(axes: Axes, rows: Sequence[Row]) -> None:
    needed = [_needed(row) for row in rows]
    budgets = [row.planned.ledger.budget_bytes if row.planned is not None else row.memory_bytes for row in rows]
    largest = max([*needed, *(budget or 0 for budget in budgets), 1])
    unit, unit_name = byte_axis(largest)
    for place, (row, size, budget) in enumerate(zip(rows, needed, budgets, strict=True)):
        fits = row.planned is not None
        axes.barh(place, (budget or 0) / unit, height=0.6, color=ROOM, zorder=2)
        colour, edge = (BAR, BAR) if fits else ("white", LINE)
        axes.barh(place, size / unit, height=0.34, color=colour, edgecolor=edge, zorder=3)
        if budget:
            axes.plot([budget / unit] * 2, [place - 0.36, place + 0.36], color=LINE, linewidth=1.6, zorder=4)
        said = format_bytes(size) if size else "unknown"
        text = said if fits else f"{said}: does not fit"
        end = (max(size, budget or 0) + 0.01 * largest) / unit
        axes.text(end, place, f" {text}", va="center", fontsize=8, color=INK)
    axes.set_xlim(0, 1.45 * largest / unit)
    axes.set_xlabel(f"{unit_name} of one device", fontsize=9, color=QUIET_INK)
    axes.set_title("what the plan takes; red is the budget", loc="left", fontsize=10, color=INK)
    quieten(axes)


def _needed(row: Row) -> int:
    return row.planned.ledger.predicted_peak_bytes if row.planned is not None else row.floor_bytes or 0


def _draw_speed(axes: Axes, rows: Sequence[Row]) -> None:
    rates = [row.rate or 0.0 for row in rows]
    for place, (row, rate) in enumerate(zip(rows, rates, strict=True)):
        axes.barh(place, rate, height=0.34, color=BAR, zorder=3)
        text = format_rate(rate, row.rate_unit) if rate else "no plan, or no rate known"
        axes.text(rate, place, f"  {text}", va="center", fontsize=8, color=INK)
    axes.set_xlim(0, 1.45 * max([*rates, 1e-9]))
    axes.xaxis.set_major_formatter(lambda value, _place: format_count(value))
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel(f"{rows[0].rate_unit} per second, all devices", fontsize=9, color=QUIET_INK)
    axes.set_title("how fast, by the chips' rates", loc="left", fontsize=10, color=INK)
    quieten(axes)
