"""Pictures of a plan: its components as a waterfall up to the budget, and what bytes buy in time.

    save_picture("plan.png", lambda: waterfall(planned))

Each bar starts where the one above it ends, so the last one ends at the predicted peak, and the rest up to the
budget is free. Below are the largest temporaries of the step, by their place in the source. matplotlib takes 55 MiB
of resident memory, so it is imported inside the functions that draw: a training process never does. A `Figure`
created directly leaves pyplot's global state, and any open window, alone.

Pages (`report/page/`) draw their own SVG instead: it follows the reader's light or dark colours and font size.
A chart takes 6 ms and 5 KB there; matplotlib needs 150 ms and 16 KB, and a second to import.
"""

import importlib.util
import os
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.errors import PlimsollError
from plimsoll.planned import Buffer, Planned
from plimsoll.report.layout import format_share
from plimsoll.report.tables import plan_words
from plimsoll.units import GIB, MIB, format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")
INK, QUIET_INK, BAR, PEAK, ROOM, LINE = "#1f2933", "#66727f", "#4a7fb0", "#1f4e79", "#e4e9ee", "#b3261e"


def save_picture(path: Path | str, draw: Callable[[], "Figure"]) -> Path:
    """Saves the figure and returns the path. The same figure gives the same bytes: no date, no random ids in SVG.

    Raises:
        PlimsollError: There is no picture to be made there, as `require_picture` says, or the disk is full.
    """
    path = require_picture(path)
    try:
        figure = draw()
        from matplotlib import rc_context
    except ImportError as error:
        raise _needs(path, f"cannot be imported here ({error})") from error
    with rc_context({"svg.hashsalt": "plimsoll", "svg.fonttype": "none"}):
        try:
            figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
        except OSError as problem:  # a full disk
            raise PlimsollError(f"the picture {path} was not written: {problem.strerror or problem}") from None
    return path


def _needs(path: Path, why: str) -> PlimsollError:
    return PlimsollError(
        f"the picture {path.name!r} needs matplotlib, which {why}: `pip install matplotlib`, or read the same numbers"
        " in the table"
    )


def require_picture(path: Path | str) -> Path:
    """Returns the path if a picture can be drawn there. Called before planning; imports and writes nothing.

    Raises:
        PlimsollError: If the format is not supported, matplotlib is missing, or the place is not writable.
    """
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise PlimsollError(f"a picture is written as {' or '.join(FORMATS)}, and {path.name!r} is neither")
    if importlib.util.find_spec("matplotlib") is None:
        raise _needs(path, "is not installed")
    folder = path.parent
    if path.is_dir():
        why = "it is a folder"
    elif not folder.is_dir():
        why = f"{folder} is no folder" if folder.exists() else f"there is no folder {folder}"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        why = "you may not write there"
    else:
        return path
    raise PlimsollError(f"the picture {path} cannot be written, {why}: name a file in a folder that is yours")


def waterfall(planned: Planned) -> "Figure":
    """Returns the figure of a plan, for a notebook or another format."""
    from matplotlib.figure import Figure

    ledger = planned.ledger
    parts = sorted(ledger.predicted.items(), key=lambda item: -item[1])
    rows, below = len(parts) + 1, len(planned.largest_buffers)
    height = 1.9 + 0.36 * rows + (0.9 + 0.3 * below if below else 0)
    figure = Figure(figsize=(9, height), layout="constrained", facecolor="white")
    if below:
        axes, temporaries = figure.subplots(2, 1, height_ratios=[rows, below])
        _draw_temporaries(temporaries, planned.largest_buffers)
    else:
        axes = figure.subplots()
    _draw_bars(axes, parts, ledger.predicted_peak_bytes, ledger.budget_bytes)
    share = format_share(ledger.predicted_peak_bytes, ledger.budget_bytes)
    subtitle = f"{plan_words(planned.plan)}\npeak in phase {ledger.phase}, {ledger.source}: {share} of the budget"
    axes.set_title(subtitle, loc="left", fontsize=9, color=QUIET_INK, pad=22)
    title = f"{planned.recipe} on {planned.plan.chip}" + (f" x {planned.devices}" if planned.devices > 1 else "")
    _write_above(axes, title, at=0, points=48, ha="left", color=INK, fontsize=12, fontweight="bold")
    return figure


def frontier_figure(planned: Planned) -> "Figure":
    """Returns a figure of bytes against time: the plans that nothing beats, the chosen one, and the budget as a line.

    Plans that were not compiled are hollow: their bytes are believed.
    """
    from matplotlib.figure import Figure

    budget, points = planned.ledger.budget_bytes, planned.frontier
    unit, unit_name = byte_axis(max([budget, *(point.needed_bytes for point in points)]))
    slowest = max((point.step_seconds for point in points), default=1.0)
    second, time_name = (1.0, "s") if slowest >= 1 else (1e-3, "ms")
    figure = Figure(figsize=(9, 5), layout="constrained", facecolor="white")
    axes = figure.subplots()
    xs, ys = [point.step_seconds / second for point in points], [point.needed_bytes / unit for point in points]
    axes.plot(xs, ys, color=BAR, linewidth=1.2, drawstyle="steps-pre", zorder=2)
    for point, x, y in zip(points, xs, ys, strict=True):
        colour = LINE if point.chosen else BAR
        axes.plot([x], [y], "o", color=colour, markerfacecolor=colour if point.compiled else "white", zorder=3)
        if point.chosen:
            text = f"chosen: {plan_words(point.plan)}"
            axes.annotate(text, (x, y), (8, 8), textcoords="offset points", fontsize=8, color=INK)
    axes.axhline(budget / unit, color=LINE, linewidth=1.6, zorder=1)
    place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right", "fontsize": 9}
    axes.annotate(f"budget {format_bytes(budget)}", (1, budget / unit), (-4, 4), color=LINE, **place)
    axes.set_ylim(0, 1.1 * max([budget / unit, *ys]))
    axes.margins(x=0.12)
    bar_axes(axes, x_label=f"time of a step in {time_name}")
    axes.set_ylabel(f"budget that is enough in {unit_name}", fontsize=9, color=QUIET_INK)
    axes.tick_params(axis="y", colors=QUIET_INK, labelsize=8)
    axes.grid(axis="y", color=ROOM, linewidth=0.8, zorder=0)
    title = f"{planned.recipe} on {planned.plan.chip}: bytes against step time. Hollow: estimated, not compiled"
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=INK, pad=12)
    return figure


def _draw_bars(axes: "Axes", parts: list[tuple[str, int]], peak: int, budget: int) -> None:
    """Draws a bar per component from where the one before it ends, then the peak, and the budget as a line."""
    unit, unit_name = byte_axis(max(peak, budget))
    sizes = [size for _, size in parts]
    starts = [0, *accumulate(sizes)][:-1]
    full = max(peak, budget) / unit
    bars = [*zip(starts, sizes, [BAR] * len(parts), strict=True), (0, peak, PEAK)]
    for row, (start, size, colour) in enumerate(bars):
        axes.barh(row, size / unit, left=start / unit, height=0.66, color=colour, edgecolor=colour, zorder=3)
        text = f"{format_bytes(size)}  {format_share(size, peak)}" if row < len(parts) else format_bytes(size)
        end = (start + size) / unit
        if end > 0.8 * full:  # no room to the right of it: the text goes before the bar, or inside it
            inside = size / unit > 0.25 * full
            at, side, ink = (end, "right", "white") if inside else (start / unit, "right", INK)
            shift = -0.008 * full
        else:
            at, side, ink, shift = end, "left", INK, 0.008 * full
        beneath = {"facecolor": "white", "edgecolor": "none", "pad": 1} if row < len(parts) and ink == INK else None
        axes.text(at + shift, row, text, va="center", ha=side, fontsize=9, color=ink, zorder=5, bbox=beneath)
        if row < len(parts):  # to the start of the next bar, or down to the end of the peak's
            axes.plot([end, end], [row + 0.33, row + 0.67], color=QUIET_INK, linewidth=0.8, zorder=2)
    if peak < budget:
        axes.barh(len(parts), (budget - peak) / unit, left=peak / unit, height=0.66, color=ROOM, zorder=1)
    limit = budget / unit
    axes.axvline(limit, color=LINE, linewidth=1.6, zorder=4)
    room = f"room {format_bytes(budget - peak)}" if peak <= budget else f"over by {format_bytes(peak - budget)}"
    _write_above(axes, f"budget {format_bytes(budget)}, {room}", at=limit, points=5, ha="right", color=LINE, fontsize=9)
    axes.set_yticks(range(len(bars)), [*(name for name, _ in parts), "predicted peak"], fontsize=9, color=INK)
    axes.get_yticklabels()[-1].set_fontweight("bold")
    axes.set_ylim(len(parts) + 0.6, -0.6)
    axes.set_xlim(0, 1.03 * full)
    bar_axes(axes, x_label=f"{unit_name} per device")


def _draw_temporaries(axes: "Axes", buffers: Sequence[Buffer]) -> None:
    unit, unit_name = byte_axis(buffers[0].bytes)
    for row, buffer in enumerate(buffers):
        axes.barh(row, buffer.bytes / unit, height=0.6, color=BAR, zorder=3)
        inside = buffer.bytes > 0.6 * buffers[0].bytes
        at, ink = (0, "white") if inside else (buffer.bytes / unit, INK)
        text = f" {format_bytes(buffer.bytes)}  {buffer.shape}"
        axes.text(at, row, text, va="center", fontsize=8, color=ink, zorder=5)
    labels = [f"{buffer.place}  {buffer.what}".strip() for buffer in buffers]
    axes.set_yticks(range(len(buffers)), labels, fontsize=8, color=INK)
    axes.set_ylim(len(buffers) - 0.4, -0.6)
    axes.set_title("largest temporaries when the step needs most", loc="left", fontsize=9, color=QUIET_INK)
    bar_axes(axes, x_label=unit_name)


def bar_axes(axes: "Axes", *, x_label: str) -> None:
    """Labels the horizontal axis and styles both for a chart of bars: a light grid, no ticks and no frame."""
    axes.set_xlabel(x_label, fontsize=9, color=QUIET_INK)
    axes.tick_params(axis="x", colors=QUIET_INK, labelsize=8, length=0)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=ROOM, linewidth=0.8, zorder=0)
    axes.spines[:].set_visible(False)


def _write_above(axes: "Axes", text: str, *, at: float, points: float, **style: Any) -> None:
    """Writes above the bars, at a value of the axis of bytes and a distance in points from their top."""
    place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
    axes.annotate(text, xy=(at, 1), xytext=(0, points), va="bottom", **place, **style)


def byte_axis(largest: int) -> tuple[int, str]:
    """Returns the bytes of an axis' unit, and its name: GiB from 1 GiB on, else MiB."""
    return (GIB, "GiB") if largest >= GIB else (MIB, "MiB")
