"""The one way to draw: curves and bars by matplotlib, as a file of their own or inside a page.

    save_picture("plan.png", figure_of(waterfall(planned)))

matplotlib takes 55 MiB of resident memory, so it is imported inside the functions that draw: a training process never
does. A `Figure` that is created directly leaves pyplot's global state, and any open window, alone.

In a page a chart is SVG in the page's colours, which follow the reader's light or dark. It holds numbers and names of
bars; titles and axes are HTML around it, and keep their size on a phone.
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
WIDTH, HEIGHT = 420, 250
"""Points of a chart of curves."""
ROW_HEIGHT, FRAME_HEIGHT = 22, 50
"""Points of a bar or a line of words, and of all that is around bars."""
WORDS_WIDTH = 200
"""Points by which a picture with words in it is wider than a chart of a page."""
FEW = 16
"""Points up to which each has a dot."""
DECADES = 30
"""Largest value over the smallest from which an axis is logarithmic."""
LARGEST = 1e300
"""Values beyond it are taken for infinite: the difference of two must be a number."""
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "plimsoll",  # the same chart gives the same bytes
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
    "path.simplify_threshold": 0.5,  # a line of 100,000 points keeps what can be seen, single extremes among it
    "savefig.dpi": 150,
}


@dataclass(frozen=True, kw_only=True)
class Line:
    """A curve of a chart. Values that are not finite leave a gap."""

    name: str
    xs: Sequence[float]
    """Positions, ascending."""
    ys: Sequence[float]
    """Values in the unit of the axis."""
    is_marked: bool = False
    """True if every point has a dot, as evaluations do, which are few."""

    @property
    def finite(self) -> list[float]:
        """Values that can be drawn."""
        return [y for y in self.ys if is_finite(y)]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves over one axis."""

    title: str
    unit: str
    """Name of the vertical axis with its unit."""
    lines: Sequence[Line]
    x_unit: str = "optimizer step"
    """Name of the horizontal axis with its unit."""
    caption: str = ""
    """Text below the chart: what to look for."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Names and values of horizontal lines that must not be crossed, like the budget."""
    from_zero: bool = False
    """True if the vertical axis begins at zero. Else it is logarithmic once values span decades."""
    logarithmic_x: bool = False
    height: int = HEIGHT

    @property
    def values(self) -> list[float]:
        """Values of all curves that can be drawn."""
        return [value for line in self.lines for value in line.finite]

    @property
    def is_logarithmic(self) -> bool:
        """True if the vertical axis shows more when it is logarithmic."""
        return not self.from_zero and min(self.values) > 0 and max(self.values) > DECADES * min(self.values)

    @property
    def legend(self) -> list[tuple[str, str]]:
        """Colours and names of the curves."""
        pairs = zip(SERIES, self.lines, strict=False)
        return [(colour, line.name) for colour, line in pairs if line.finite]

    @property
    def description(self) -> str:
        """The chart in words, for screen readers."""
        return f"{self.title}. {self.unit} over {self.x_unit}."

    def draw(self, axes: Axes) -> None:
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
        """Sets up the axes, with numbers as the tables write them."""
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
    """A row of a chart of bars."""

    name: str
    parts: Mapping[str, float]
    """Names and sizes of what the bar is made of, from the left."""
    text: str
    """What stands at its end."""
    start: float = 0
    mark: float | None = None
    """Value to compare with, like a prediction: a line across the bar."""
    is_hollow: bool = False
    """True if it was not measured, or does not fit."""

    @property
    def end(self) -> float:
        return self.start + sum(self.parts.values())


@dataclass(frozen=True, kw_only=True)
class Bars:
    """Bars to one scale, the first at the top."""

    title: str
    rows: Sequence[Bar]
    x_unit: str
    """Name of the horizontal axis with its unit."""
    caption: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Names and values of vertical lines that must not be crossed."""
    unit: str = ""

    @property
    def values(self) -> list[float]:
        ends = [max(row.end, row.mark or 0) for row in self.rows]
        return [*ends, *self.limits.values()]

    @property
    def height(self) -> int:
        return FRAME_HEIGHT + ROW_HEIGHT * len(self.rows)

    @property
    def legend(self) -> list[tuple[str, str]]:
        """Colours and names of the parts."""
        names = dict.fromkeys(name for row in self.rows for name in row.parts)
        return [*zip(SERIES, names, strict=False)]

    @property
    def description(self) -> str:
        """The bars in words, for screen readers."""
        return f"{self.title}. " + " ".join(f"{row.name}: {row.text}." for row in self.rows)

    def draw(self, axes: Axes) -> None:
        # Bars of their parts, with marks and texts.
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

        # Axes: names, and room for the texts.
        axes.set_yticks(range(len(self.rows)), [row.name for row in self.rows])
        axes.set_ylim(len(self.rows) - 0.4, -0.6)
        axes.set_xlim(0, 1.8 * max(1e-9, *self.values))
        axes.grid(visible=False, axis="y")


def is_finite(value: float) -> bool:
    """Returns whether a value can be drawn."""
    return math.isfinite(value) and abs(value) < LARGEST


def figure_of(chart: Chart | Bars, *, has_words: bool = True) -> Figure:
    """Returns a chart as a figure; `has_words` if its title, the names of its axes and its legend stand in it."""
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
    """Returns the inside of a chart's SVG, with the page's variables for the colours of its palette."""
    from matplotlib import style

    # Drawn.
    svg = io.StringIO()
    with style.context(["default", STYLE]):
        figure_of(chart, has_words=False).savefig(svg, format="svg", transparent=True)
    drawn = svg.getvalue()

    # Without what surrounds it, and with variables instead of colours.
    inside = drawn[drawn.index(">", drawn.index("<svg")) + 1 : drawn.rindex("</svg>")]
    inside = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</defs>|<!--.*?-->", "", inside, flags=re.DOTALL)
    inside = re.sub(r' id="[a-z0-9]+(\.[a-z]+)?_[0-9_]+"', "", inside)  # not unique within a page
    for name, colour in LIGHT.items():
        inside = inside.replace(colour, f"var(--{name})")
    return re.sub(r"\n\s*", "\n", inside)


def save_picture(path: Path | str, figure: Figure) -> Path:
    """Saves the figure and returns the path. The same figure gives the same bytes: no date, no random ids in SVG.

    Raises:
        PlimsollError: There is no file to be written there, as `require_place` says, or the disk is full.
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
    """Returns the path if a file of these formats can be written there. Called before anything that takes time.

    Raises:
        PlimsollError: The format is another, or the place is not writable.
    """
    path = Path(path).expanduser()
    if path.suffix.lower() not in formats:
        raise PlimsollError(f"a picture or page is written as {' or '.join(formats)}, and {path.name!r} is neither")
    place = path if path.exists() else path.parent
    if path.is_dir() or not path.parent.is_dir() or not os.access(place, os.W_OK):
        raise PlimsollError(
            f"{path} cannot be written: name a file in a folder that is there, and in which you may write"
        )
    return path


def waterfall(planned: Planned) -> Bars:
    """Returns the bytes of a plan as bars, each beginning where the one above ends, up to the budget."""
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
    """Returns bytes against time: the plans that nothing beats, the chosen one, and the budget."""
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
    """Returns the bytes of an axis' unit, and its name."""
    return (GIB, "GiB") if largest >= 3 * GIB else (MIB, "MiB")
