"""Charts of curves and bars by matplotlib, as image files or as SVG inside an HTML page.

    save_picture("plan.png", figure_of(waterfall(planned)))

matplotlib takes 55 MiB of resident memory, so only the functions that draw import it, and a training process never
does. Figures are created directly, without pyplot's global state, so the user's open figures are not affected.

In a page a chart is an SVG in the page's colours, for light or dark mode. The SVG has only numbers and names of bars.
Titles and axis labels are HTML around the SVG, so that they keep their size on a phone.
"""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from plimsoll.errors import PlimsollError
from plimsoll.planned import Planned
from plimsoll.report.layout import format_share
from plimsoll.report.palette import LIGHT, SERIES
from plimsoll.report.tables import plan_words
from plimsoll.units import GIB, MIB, format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")
"""Suffixes of the supported image files."""
WIDTH, HEIGHT = 420, 250
"""Size of a chart of curves in points (1/72 inch)."""
ROW_HEIGHT, FRAME_HEIGHT = 22, 50
"""Heights in points (1/72 inch): of one bar or line of text, and of the frame around all bars."""
WORDS_WIDTH = 200
"""Additional width in points of a picture with titles and labels, compared with a chart in a page."""
FEW = 16
"""Largest number of data points for which a curve always has a dot at each point."""
DECADES = 30
"""Ratio of largest to smallest value above which an axis is logarithmic."""
LARGEST = 1e300
"""Absolute value from which a number counts as infinite, so that differences of smaller numbers stay finite."""
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "plimsoll",  # makes files reproducible
    "text.parse_math": False,
    "text.color": LIGHT["ink"],
    "font.size": 12,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.labelcolor": LIGHT["quiet"],
    "axes.edgecolor": LIGHT["rule"],
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.xmargin": 0.01,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": LIGHT["rule"],
    "xtick.color": LIGHT["rule"],
    "ytick.color": LIGHT["rule"],
    "xtick.labelcolor": LIGHT["quiet"],
    "ytick.labelcolor": LIGHT["quiet"],
    "legend.frameon": False,
    "path.simplify_threshold": 0.5,  # simplifies a line of 100,000 points without a visible difference
    "savefig.dpi": 150,
}


@dataclass(frozen=True, kw_only=True)
class Line:
    """A curve of a chart. Values that are not finite leave a gap."""

    name: str
    xs: Sequence[float]
    """Positions on the horizontal axis, ascending."""
    ys: Sequence[float]
    """Values in the unit of the vertical axis."""
    is_marked: bool = False
    """True if every point has a dot, for curves of few points like evaluations."""

    @property
    def finite(self) -> list[float]:
        """Finite values of the curve."""
        return [y for y in self.ys if is_finite(y)]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart of curves with a common horizontal axis."""

    title: str
    unit: str
    """Name of the vertical axis with its unit."""
    lines: Sequence[Line]
    x_unit: str = "optimizer step"
    """Name of the horizontal axis with its unit."""
    caption: str = ""
    """Text below the chart, which says what to look for."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Map from the name of a limit, like the budget, to its value. Limits are drawn as horizontal lines."""
    from_zero: bool = False
    """True if the vertical axis begins at zero. Otherwise it is logarithmic for positive values that differ widely."""
    logarithmic_x: bool = False
    height: int = HEIGHT
    """Height in points."""

    @property
    def values(self) -> list[float]:
        """Finite values of all curves."""
        return [value for line in self.lines for value in line.finite]

    @property
    def is_logarithmic(self) -> bool:
        """True if the vertical axis is logarithmic."""
        return not self.from_zero and min(self.values) > 0 and max(self.values) > DECADES * min(self.values)

    @property
    def legend(self) -> list[tuple[str, str]]:
        """Colour and name of each curve that has values."""
        pairs = zip(SERIES, self.lines, strict=False)
        return [(colour, line.name) for colour, line in pairs if line.finite]

    @property
    def description(self) -> str:
        """Description of the chart for screen readers."""
        return f"{self.title}. {self.unit} over {self.x_unit}."

    def draw(self, axes: Axes) -> None:
        """Draws the chart into matplotlib axes."""
        # Curves and limits.
        for colour, line in zip(SERIES, self.lines, strict=False):
            if line.finite:
                ys = [y if is_finite(y) else math.nan for y in line.ys]
                marker = "o" if line.is_marked or len(ys) <= FEW else ""
                axes.plot(line.xs, ys, color=LIGHT[colour], marker=marker, clip_on=False)
        for name, value in self.limits.items():
            axes.axhline(value, color=LIGHT["line"], linewidth=2.2)
            place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right"}
            axes.annotate(name, (1, value), (-4, 4), color=LIGHT["line"], **place)
        self._scale(axes)

    def _scale(self, axes: Axes) -> None:
        """Sets linear or logarithmic axes, the start of the vertical axis, and a number format like `1,024`."""
        if self.logarithmic_x:
            axes.set_xscale("log")
        if self.is_logarithmic:
            axes.set_yscale("log")
        if self.from_zero:
            axes.set_ylim(bottom=min(0, *self.values))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:,.10g}")
            axis.set_minor_formatter("")


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar of a bar chart."""

    name: str
    parts: Mapping[str, float]
    """Map from the name of a part of the bar to its length. Parts are drawn from the left."""
    text: str
    """Text at the end of the bar."""
    start: float = 0
    """Position on the horizontal axis at which the bar begins."""
    mark: float | None = None
    """Value to compare the bar with, like a prediction. It is drawn as a line across the bar."""
    is_hollow: bool = False
    """True if the bar is not filled, because its value was not measured."""

    @property
    def end(self) -> float:
        """Position on the horizontal axis at which the bar ends."""
        return self.start + sum(self.parts.values())


@dataclass(frozen=True, kw_only=True)
class Bars:
    """A chart of horizontal bars, the first at the top."""

    title: str
    rows: Sequence[Bar]
    x_unit: str
    """Name of the horizontal axis with its unit."""
    caption: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Map from the name of a limit, like the budget, to its value. Limits are drawn as vertical lines."""
    unit: str = ""
    """Name of the vertical axis; empty, because the bars have names."""

    @property
    def values(self) -> list[float]:
        """Ends of the bars, their marks, and the limits, from which the horizontal axis is scaled."""
        ends = [max(row.end, row.mark or 0) for row in self.rows]
        return [*ends, *self.limits.values()]

    @property
    def height(self) -> int:
        """Height in points."""
        return FRAME_HEIGHT + ROW_HEIGHT * len(self.rows)

    @property
    def legend(self) -> list[tuple[str, str]]:
        """Colour and name of each part."""
        names = dict.fromkeys(name for row in self.rows for name in row.parts)
        return [*zip(SERIES, names, strict=False)]

    @property
    def description(self) -> str:
        """Description of the bars for screen readers."""
        return f"{self.title}. " + " ".join(f"{row.name}: {row.text}." for row in self.rows)

    def draw(self, axes: Axes) -> None:
        """Draws the bars into matplotlib axes."""
        # Draw each bar with its parts, mark and text.
        colours = {name: LIGHT[colour] for colour, name in self.legend}
        for place, row in enumerate(self.rows):
            left = row.start
            for name, size in row.parts.items():
                fill = "none" if row.is_hollow else colours[name]
                axes.barh(place, size, left=left, height=0.6, color=fill, edgecolor=colours[name])
                left += size
            if row.mark is not None:
                axes.plot([row.mark] * 2, [place - 0.4, place + 0.4], color=LIGHT["ink"], linewidth=2)
            place_of_text = (max(row.end, row.mark or 0), place)
            axes.annotate(row.text, place_of_text, (5, 0), textcoords="offset points", va="center", fontsize=10)

        # Limits.
        for name, value in self.limits.items():
            axes.axvline(value, color=LIGHT["line"], linewidth=2.2, zorder=0)
            axes.annotate(name, (value, -0.6), (0, 3), color=LIGHT["line"], textcoords="offset points", ha="right")

        # Write the bars' names on the vertical axis, and leave space for the texts beside the bars.
        axes.set_yticks(range(len(self.rows)), [row.name for row in self.rows])
        axes.set_ylim(len(self.rows) - 0.4, -0.6)
        axes.set_xlim(0, 1.8 * max(1e-9, *self.values))
        axes.grid(visible=False, axis="y")


def is_finite(value: float) -> bool:
    """Returns True if a value is finite and small enough to be drawn."""
    return math.isfinite(value) and abs(value) < LARGEST


def figure_of(chart: Chart | Bars, *, has_words: bool = True) -> Figure:
    """Draws a chart as a matplotlib figure.

    Args:
        chart: The chart.
        has_words: True to add title, axis labels and legend.
    """
    from matplotlib import style
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    width, height = WIDTH, chart.height
    if has_words:
        width += WORDS_WIDTH
        height += ROW_HEIGHT * (2 + len(chart.legend))
    with style.context(["default", STYLE]):
        figure = Figure(figsize=(width / 72, height / 72), layout="constrained")
        axes = figure.subplots()
        chart.draw(axes)
        if has_words:
            axes.set_title(chart.title, pad=ROW_HEIGHT)
            axes.set_xlabel(chart.x_unit)
            axes.set_ylabel(chart.unit)
            if len(chart.legend) > 1:
                handles = [Line2D([], [], color=LIGHT[colour], label=name) for colour, name in chart.legend]
                figure.legend(handles=handles, loc="outside lower left")
    return figure


def inline(chart: Chart | Bars) -> str:
    """Draws a chart as the content of an `<svg>` element, with the page's CSS variables as colours."""
    from matplotlib import style

    # Draw the chart as an SVG document.
    svg = io.StringIO()
    with style.context(["default", STYLE]):
        figure_of(chart, has_words=False).savefig(svg, format="svg", transparent=True)
    drawn = svg.getvalue()

    # Keep only the content of the `<svg>` element. Remove metadata and comments. Replace colours by CSS variables.
    inside = drawn[drawn.index(">", drawn.index("<svg")) + 1 : drawn.rindex("</svg>")]
    inside = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</defs>|<!--.*?-->", "", inside, flags=re.DOTALL)
    inside = re.sub(r' id="[a-z0-9]+(\.[a-z]+)?_[0-9_]+"', "", inside)  # not unique within a page
    for name, colour in LIGHT.items():
        inside = inside.replace(colour, f"var(--{name})")
    return re.sub(r"\n\s*", "\n", inside)


def save_picture(path: Path | str, figure: Figure) -> Path:
    """Saves a figure, and returns its path. Files are reproducible: SVG has no date and no random ids.

    Raises:
        PlimsollError: `require_place` refuses the path, or the disk is full.
    """
    from matplotlib import style

    path = require_place(path)
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
    with style.context(["default", STYLE]):
        try:
            figure.savefig(path, metadata=metadata)
        except OSError as problem:  # a full disk
            raise PlimsollError(f"the picture {path} was not written: {problem.strerror or problem}") from None
    return path


def require_place(path: Path | str, formats: Sequence[str] = FORMATS) -> Path:
    """Returns the path, after checking that a file can be written there. Call it before work that takes time.

    Args:
        path: Path of the file.
        formats: Allowed suffixes.

    Raises:
        PlimsollError: The suffix is not among `formats`, or the path is not writable.
    """
    path = Path(path).expanduser()
    if path.suffix.lower() not in formats:
        raise PlimsollError(f"a picture or page is written as {' or '.join(formats)}, and {path.name!r} is neither")
    place = path if path.exists() else path.parent
    if path.is_dir() or not path.parent.is_dir() or not os.access(place, os.W_OK):
        raise PlimsollError(f"{path} cannot be written: name a file in a folder that exists and is writable")
    return path


def waterfall(planned: Planned) -> Bars:
    """Returns a waterfall chart of a plan's predicted bytes: each component's bar begins where the bar above ends."""
    ledger = planned.ledger
    peak, budget = ledger.predicted_peak_bytes, ledger.budget_bytes
    unit, unit_name = byte_axis(max(peak, budget))
    largest_first = sorted(ledger.components.items(), key=lambda item: -item[1])
    starts = accumulate((size for _, size in largest_first), initial=0)
    rows = [
        Bar(
            name=name,
            parts={"bytes": size / unit},
            text=f"{format_bytes(size)}  {format_share(size, peak)}",
            start=start / unit,
        )
        for (name, size), start in zip(largest_first, starts, strict=False)
    ]
    rows.append(Bar(name="predicted peak", parts={"bytes": peak / unit}, text=format_bytes(peak)))
    return Bars(
        title=f"{planned.recipe} on {planned.plan.chip}: {format_share(peak, budget)} of the budget",
        rows=rows,
        x_unit=f"{unit_name}, predicted",
        limits={f"budget {format_bytes(budget)}": budget / unit},
    )


def frontier_chart(planned: Planned) -> Chart:
    """Returns a chart of bytes against step time: plans on the Pareto frontier, the chosen plan, and the budget."""
    budget = planned.ledger.budget_bytes
    points = sorted(planned.frontier, key=lambda point: point.step_seconds)
    unit, unit_name = byte_axis(max([budget, *(point.needed_bytes for point in points)]))
    chosen = [point for point in points if point.chosen]
    groups = {"plans that no other beats": points, f"chosen: {plan_words(planned.plan)}": chosen}
    lines = [
        Line(
            name=name,
            xs=[point.step_seconds for point in group],
            ys=[point.needed_bytes / unit for point in group],
            is_marked=True,
        )
        for name, group in groups.items()
    ]
    estimated = sum(not point.compiled for point in points)
    return Chart(
        title="Bytes against time",
        caption="No plan is both smaller and faster than one of these."
        f" {estimated:,} of {len(points):,} were not compiled; their bytes are estimates.",
        unit=f"smallest budget, {unit_name}",
        x_unit="time of a step, seconds",
        lines=lines,
        limits={f"budget {format_bytes(budget)}": budget / unit},
        from_zero=True,
    )


def byte_axis(largest: float) -> tuple[int, str]:
    """Returns the unit of a byte axis, as its number of bytes and its name.

    Args:
        largest: Largest value on the axis, in bytes.
    """
    return (GIB, "GiB") if largest >= 3 * GIB else (MIB, "MiB")
