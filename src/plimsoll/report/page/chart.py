"""Line charts: matplotlib draws them as inline SVG, in colours of the page that follow the reader's light or dark.

The SVG holds numbers only. Names and units are HTML around it: they are escaped as all of the page is, and keep their
size on a phone.

A long series is thinned: of each stretch the lowest and the highest value are kept, so a single bad step among
100,000 is visible. A value that is not finite leaves a gap, and is counted in the caption.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from plimsoll.report.page.blocks import Block
from plimsoll.report.page.palette import LIGHT, SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

WIDTH, HEIGHT = 420, 250
STRETCHES = 240
"""Stretches that a long line is divided into; each keeps two points."""
FEW = 16
"""Points up to which each has a dot."""
DECADES = 30
"""Largest value over the smallest from which an axis may be logarithmic."""
LARGEST = 1e300
"""Values beyond it are taken for infinite: the difference of two must be a number."""
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "plimsoll",  # the same chart gives the same bytes
    "text.parse_math": False,
    "font.size": 12,
    "xtick.color": LIGHT["quiet"],
    "ytick.color": LIGHT["quiet"],
    "axes.edgecolor": LIGHT["rule"],
    "grid.color": LIGHT["rule"],
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.xmargin": 0.01,
    "axes.ymargin": 0.06,
    "lines.linewidth": 1.5,
    "lines.markersize": 4,
}


@dataclass(frozen=True, kw_only=True)
class Line:
    """A curve of a chart."""

    name: str
    xs: Sequence[float]
    """Positions, ascending."""
    ys: Sequence[float]
    """Values in the unit of the axis."""
    is_marked: bool = False
    """True if every point has a dot, as evaluations do, which are few."""

    @property
    def points(self) -> list[tuple[float, float]]:
        """Points with a finite value."""
        return [(x, y) for x, y in zip(self.xs, self.ys, strict=True) if is_finite(x) and is_finite(y)]

    @property
    def lost(self) -> list[float]:
        """Positions without a finite value."""
        return [x for x, y in zip(self.xs, self.ys, strict=True) if not is_finite(y)]


@dataclass(frozen=True, kw_only=True)
class Chart(Block):
    """Curves with everything that is written around them. It is left out without a single finite point."""

    macro = "chart"
    title: str
    caption: str
    """Text below the chart: what to look for."""
    y_label: str
    """Name of the vertical axis with its unit."""
    lines: Sequence[Line]
    x_label: str = "optimizer step"
    """Name of the horizontal axis with its unit."""
    limits: Sequence[tuple[str, float]] = ()
    """Names and values of horizontal lines that must not be crossed, like the budget."""
    from_zero: bool = False
    x_from_zero: bool = False
    may_be_logarithmic: bool = False
    """True if the vertical axis is logarithmic once values span decades."""
    logarithmic_x: bool = False
    is_share: bool = False
    """True if values are shares, so that the axis goes from 0 to 1."""
    is_filled: bool = False
    """True if the area below the first line is filled, to show how much of a limit is used."""

    size: ClassVar[str] = f"{WIDTH} {HEIGHT}"

    @property
    def is_empty(self) -> bool:
        return not self.values

    @property
    def is_logarithmic(self) -> bool:
        """True if the vertical axis shows more when it is logarithmic."""
        return self.may_be_logarithmic and min(self.values) > 0 and max(self.values) > DECADES * min(self.values)

    @property
    def values(self) -> list[float]:
        """Finite values of all curves."""
        return [y for line in self.lines for _, y in line.points]

    @property
    def legend(self) -> list[tuple[str, str]]:
        """Colours and names of the curves, if there are several."""
        names = [line.name for line in self.lines]
        return list(zip(SERIES, names, strict=False)) if len(names) > 1 else []

    @property
    def losses(self) -> str:
        """Values that are not finite, in words."""
        return "".join(
            f" Of {line.name}, {len(line.lost):,} of {len(line.ys):,} values are NaN or infinite, the first at"
            f" {line.lost[0]:,.6g} ({self.x_label}): see the gaps."
            for line in self.lines
            if line.lost
        )

    @property
    def description(self) -> str:
        """The chart in words, for screen readers: both ends and the extremes of each line."""
        sentences = [f"{self.title}. {self.y_label} over {self.x_label}."]
        for line in self.lines:
            if points := line.points:
                (first_x, first_y), (last_x, last_y) = points[0], points[-1]
                values = [y for _, y in points]
                sentences.append(
                    f"{line.name}: from {first_y:,.4g} at {first_x:,.6g} to {last_y:,.4g} at {last_x:,.6g}; lowest"
                    f" {min(values):,.4g}, highest {max(values):,.4g}."
                )
        sentences += [f"{name}: {value:,.6g}." for name, value in self.limits]
        return " ".join(sentences)

    def drawing(self) -> str:
        """Returns the inside of the SVG."""
        from matplotlib import style
        from matplotlib.figure import Figure

        with style.context(["default", STYLE]):
            figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72), layout="constrained")
            axes = figure.subplots()
            self._draw(axes)
            svg = io.StringIO()
            figure.savefig(svg, format="svg", transparent=True)
        return in_colours_of_the_page(svg.getvalue())

    def _draw(self, axes: Axes) -> None:
        for colour, line in zip(SERIES, self.lines, strict=False):
            xs, ys = thinned(line)
            marker = "o" if line.is_marked or len(xs) <= FEW else ""
            axes.plot(xs, ys, color=LIGHT[colour], marker=marker, clip_on=False)
        if self.is_filled:
            xs, ys = thinned(self.lines[0])
            axes.fill_between(xs, ys, color=LIGHT["faint"], alpha=0.55, linewidth=0, clip_on=False)
        for name, value in self.limits:
            axes.axhline(value, color=LIGHT["line"], linewidth=2.2, clip_on=False)
            place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right"}
            axes.annotate(name, (1, value), (-4, 4), color=LIGHT["line"], fontweight="bold", **place)

        # Axes, with numbers as the tables write them.
        if self.logarithmic_x:
            axes.set_xscale("log")
            _set_ticks(axes.xaxis)
        if self.is_logarithmic:
            axes.set_yscale("log")
            _set_ticks(axes.yaxis)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        if self.from_zero:
            axes.set_ylim(bottom=min(0, *self.values))
        if self.x_from_zero:
            axes.set_xlim(left=0)
        if self.is_share and 0 <= min(self.values) <= max(self.values) <= 1:
            axes.set_ylim(0, 1.02)
        if not (self.logarithmic_x or self.is_logarithmic):
            axes.locator_params(nbins=6)
        axes.tick_params(length=3)
        axes.set_axisbelow(True)


def is_finite(value: float) -> bool:
    """Returns whether a value can be drawn."""
    return math.isfinite(value) and abs(value) < LARGEST


def thinned(line: Line) -> tuple[list[float], list[float]]:
    """Returns the lowest and the highest point of each stretch, both ends, and a gap where values are not finite."""
    ys = [y if is_finite(y) else math.nan for y in line.ys]
    size = -(-len(ys) // STRETCHES)
    places = set(range(len(ys)))
    if size > 2:
        places = {0, len(ys) - 1}
        for start in range(0, len(ys), size):
            stretch = range(start, min(start + size, len(ys)))
            finite = [at for at in stretch if is_finite(ys[at])]
            if finite:
                places |= {min(finite, key=ys.__getitem__), max(finite, key=ys.__getitem__)}
            places |= {at for at in stretch if not is_finite(ys[at])}
    chosen = [at for at in sorted(places) if is_finite(line.xs[at])]
    return [line.xs[at] for at in chosen], [ys[at] for at in chosen]


def _set_ticks(axis: Axis) -> None:
    """Places the ticks of a logarithmic axis: powers of ten, with 2 and 5 times them if there are few."""
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = axis.get_view_interval()
    subs = (1, 2, 5) if high < 1000 * low else (1,)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_minor_locator(NullLocator())


def in_colours_of_the_page(svg: str) -> str:
    """Returns the inside of an SVG of matplotlib, with the page's variables for the colours of its palette."""
    inside = svg[svg.index(">", svg.index("<svg")) + 1 : svg.rindex("</svg>")]
    inside = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</defs>|<!--.*?-->", "", inside, flags=re.DOTALL)
    inside = re.sub(r' id="[a-z0-9]+(\.[a-z]+)?_[0-9_]+"', "", inside)  # not unique within a page
    for name, colour in LIGHT.items():
        inside = inside.replace(colour, f"var(--{name})")
    return re.sub(r"\n\s*", "\n", inside)
