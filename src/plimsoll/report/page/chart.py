"""A line chart as inline SVG, in the page's own colours, with a description and its numbers as a table.

Every chart has a caption that says what to look for, units on both axes, a name and a description for screen readers,
and behind "The numbers" a few of the points it draws.

A long series is thinned: of each stretch the lowest and the highest value are kept, so a single bad step among
100,000 is visible. Values that are not finite break the line, and are marked with a cross and counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from plimsoll.report.page.axes import Axis, axis, spans_decades
from plimsoll.report.page.markup import Markup, element, joined, scrolling, shortened, table
from plimsoll.report.page.palette import DASHES, SERIES

WIDTH, HEIGHT = 480, 280
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 22, 46
ROWS = 9
"""Rows of the table behind "The numbers"."""
FEW, DENSE = 16, 200
"""Points up to which each has a dot, and from which a line is not dashed."""
STRETCHES = 240
"""Stretches that a thinned line is divided into; each keeps two points."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A curve of a chart."""

    name: str
    xs: Sequence[float]
    """Positions, ascending."""
    ys: Sequence[float]
    """Values in the unit of the axis. NaN and infinity break the line."""
    marked: bool = False
    """True if every point has a dot, as evaluations do, which are few."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves with everything that is written around them."""

    title: str
    caption: str
    """Text below the chart: what to look for."""
    y_label: str
    """Name of the vertical axis with its unit."""
    lines: Sequence[Line]
    x_label: str = "optimizer step"
    """Name of the horizontal axis with its unit."""
    levels: Sequence[tuple[str, float]] = ()
    """Names and values of horizontal lines that must not be crossed, like the budget."""
    from_zero: bool = False
    may_be_logarithmic: bool = False
    """True if the vertical axis is logarithmic once values span decades."""
    logarithmic_x: bool = False
    x_from_zero: bool = False
    share: bool = False
    """True if values are shares, so that the axis goes from 0 to 1."""
    filled: bool = False
    """True if the area below the first line is filled, to show how much of a level is used."""

    def figure(self) -> Markup | None:
        """Returns the chart as a figure, or None if it has not a single finite point."""
        curves = [(line, thinned(line.xs, line.ys)) for line in self.lines]
        if not any(kept.pieces for _, kept in curves):
            return None
        lost = "".join(
            f" Of {line.name}, {kept.not_finite_count:,} of {len(line.ys):,} values are NaN or infinite, the first at"
            f" {kept.not_finite[0]:,.6g} ({self.x_label}): see the crosses."
            for line, kept in curves
            if kept.not_finite
        )
        entries = []
        for at, line in enumerate(self.lines):
            stroke = element("path", d="M0 5H26", class_=f"curve {SERIES[at]}", stroke_dasharray=_dashes(line, at))
            swatch = element("svg", stroke, viewBox="0 0 26 10", width=26, height=10, aria_hidden="true")
            entries.append(element("li", swatch, " ", shortened(line.name, most=80)))
        return element(
            "figure",
            element("h3", self.title),
            element("ul", *entries, class_="legend") if len(entries) > 1 else None,
            _drawing(self, curves),
            element("figcaption", self.caption, lost),
            _numbers(self, curves),
        )


@dataclass(frozen=True)
class Thinned:
    """Points of a line that are drawn."""

    pieces: tuple[tuple[tuple[float, float], ...], ...]
    """Pieces of the line, each of points (x, y) that are finite, with x ascending."""
    not_finite: tuple[float, ...]
    """The first x without a finite value, of every stretch that has one."""
    not_finite_count: int

    @property
    def points(self) -> list[tuple[float, float]]:
        """All points, of all pieces."""
        return [point for piece in self.pieces for point in piece]


def thinned(xs: Sequence[float], ys: Sequence[float], *, stretches: int = STRETCHES) -> Thinned:
    """Returns the lowest and the highest point of each stretch, and both ends. `xs` must ascend."""
    pieces: list[list[tuple[float, float]]] = [[]]
    bad, count = [], 0
    size = 1 if len(xs) <= 2 * stretches else -(-len(xs) // stretches)
    for start in range(0, len(xs), size):
        stretch = range(start, min(start + size, len(xs)))
        finite = [at for at in stretch if math.isfinite(ys[at]) and math.isfinite(xs[at])]
        if len(finite) < len(stretch):
            count += len(stretch) - len(finite)
            bad += [xs[at] for at in stretch if not math.isfinite(ys[at]) and math.isfinite(xs[at])][:1]
            pieces.append([])
        if finite:
            ends = {min(finite, key=ys.__getitem__), max(finite, key=ys.__getitem__)}
            ends |= {finite[0]} if start == 0 else set()
            ends |= {finite[-1]} if stretch[-1] == len(xs) - 1 else set()
            pieces[-1] += [(xs[at], ys[at]) for at in sorted(ends)]
    return Thinned(tuple(tuple(piece) for piece in pieces if piece), tuple(bad), count)


def _drawing(chart: Chart, curves: Sequence[tuple[Line, Thinned]]) -> Markup:
    """Returns the SVG: axes with their grid, the filled area, the curves, the levels, and crosses for lost values."""
    points = [point for _, kept in curves for point in kept.points]
    xs, ys = [at for at, _ in points], [value for _, value in [*points, *chart.levels]]
    steep = chart.may_be_logarithmic and spans_decades(ys)
    x = axis(chart.x_label, [*xs, *([0] if chart.x_from_zero else [])], room=0.0, logarithmic=chart.logarithmic_x)
    label = f"{chart.y_label} (logarithmic)" if steep else chart.y_label
    y = axis(label, ys, from_zero=chart.from_zero, logarithmic=steep, room=0.06)
    if chart.share and min(ys) >= 0 and max(ys) <= 1:
        y = Axis(chart.y_label, 0.0, 1.0)
    floor, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = [_grid(x, y)]
    for piece in curves[0][1].pieces if chart.filled else ():
        if len(piece) > 1:
            area = f"{_path(piece, x, y)}V{floor}H{_x(x, piece[0][0]):g}Z"
            parts.append(element("path", d=area, class_="fill"))
    for at, (line, kept) in enumerate(curves):
        style = {"class_": f"curve {SERIES[at]}", "stroke_dasharray": _dashes(line, at)}
        parts += [element("path", d=_path(piece, x, y), **style) for piece in kept.pieces if len(piece) > 1]
        alone = [piece[0] for piece in kept.pieces if len(piece) == 1]
        dots = kept.points if line.marked or len(kept.points) <= FEW else alone
        dot = f"dot {SERIES[at]}"
        parts += [element("circle", cx=_x(x, across), cy=_y(y, up), r=2.6, class_=dot) for across, up in dots]
    for name, value in chart.levels:
        height = _y(y, value)
        parts.append(element("path", d=f"M{LEFT} {height}H{right}", class_="level line"))
        parts.append(element("text", name, x=right - 4, y=height - 5, text_anchor="end", class_="on line"))
    cross = {"y": TOP + 10, "text_anchor": "middle", "class_": "on line"}
    for _, kept in curves:
        parts += [element("text", "\N{MULTIPLICATION SIGN}", x=_x(x, lost), **cross) for lost in kept.not_finite]
    words = f"{chart.title}. {_described(chart, curves)}"
    return element("svg", *parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=words)


def _x(x: Axis, value: float) -> float:
    return round(LEFT + x.place(value) * (WIDTH - LEFT - RIGHT), 1)


def _y(y: Axis, value: float) -> float:
    return round(HEIGHT - BOTTOM - y.place(value) * (HEIGHT - TOP - BOTTOM), 1)


def _grid(x: Axis, y: Axis) -> Markup:
    """Returns grid lines, ticks with their numbers, and the labels of both axes."""
    parts = []
    for value, number in y.ticks():
        at = _y(y, value)
        parts.append(element("path", d=f"M{LEFT} {at}H{WIDTH - RIGHT}", class_="grid"))
        parts.append(element("text", number, x=LEFT - 7, y=at + 4, text_anchor="end"))
    for value, number in x.ticks():
        at = _x(x, value)
        parts.append(element("path", d=f"M{at} {HEIGHT - BOTTOM}v4", class_="grid"))
        end = "end" if at > WIDTH - 34 else "middle"
        parts.append(element("text", number, x=at if end == "middle" else WIDTH - 2, y=HEIGHT - 27, text_anchor=end))
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(element("text", x.label, x=middle, y=HEIGHT - 7, text_anchor="middle", class_="label"))
    parts.append(element("text", y.label, x=2, y=11, class_="label"))
    return joined(*parts)


def _path(points: Iterable[tuple[float, float]], x: Axis, y: Axis) -> str:
    return "M" + "L".join(f"{_x(x, across):g} {_y(y, up):g}" for across, up in points)


def _dashes(line: Line, at: int) -> str | None:
    """Returns the dashes of the line at that number; None if it is so dense that dashes would look like gaps."""
    return DASHES[at] or None if len(line.xs) <= DENSE else None


def _described(chart: Chart, curves: Sequence[tuple[Line, Thinned]]) -> str:
    """Returns the chart in words, for screen readers: both ends, the lowest and the highest point of each line."""
    sentences = [f"{chart.y_label} over {chart.x_label}."]
    for line, kept in curves:
        points = kept.points
        if points:
            low, high = min(points, key=lambda point: point[1]), max(points, key=lambda point: point[1])
            sentences.append(
                f"{line.name}: from {points[0][1]:,.4g} at {points[0][0]:,.6g} to {points[-1][1]:,.4g} at"
                f" {points[-1][0]:,.6g}; lowest {low[1]:,.4g} at {low[0]:,.6g}, highest {high[1]:,.4g} at"
                f" {high[0]:,.6g}."
            )
    sentences += [f"{name}: {value:,.6g}." for name, value in chart.levels]
    return " ".join(sentences)


def _numbers(chart: Chart, curves: Sequence[tuple[Line, Thinned]]) -> Markup:
    """Returns a folded table of some of the points that are drawn, the first and the last among them."""
    tables = []
    for line, kept in curves:
        points = kept.points
        if not points:
            continue
        chosen = sorted({round(part * (len(points) - 1) / (ROWS - 1)) for part in range(ROWS)})
        rows = [(f"{points[at][0]:,.6g}", f"{points[at][1]:,.5g}") for at in chosen]
        caption = f"{shortened(line.name, most=80)}: {len(chosen)} of {len(line.xs):,} points"
        tables.append(table(rows, header=(chart.x_label, chart.y_label), caption=caption))
    inside = scrolling(*tables, name=f"Numbers: {chart.title}")
    return element("details", element("summary", "The numbers"), inside)
