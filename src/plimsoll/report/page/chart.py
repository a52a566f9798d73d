"""A line chart as inline SVG, in the page's own colours; with its words, and its numbers as a table.

Every chart has a caption that says what to see, units on both axes, a name and a description for those who hear it,
and behind "The numbers" a few rows of what it draws.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from plimsoll.report.page.axes import Axis, axis, spans_decades
from plimsoll.report.page.markup import Markup, element, joined, shortened
from plimsoll.report.page.palette import DASHES, SERIES
from plimsoll.report.page.points import Thinned, thinned

WIDTH, HEIGHT = 480, 280
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 22, 46
ROWS = 9
"""Of the table behind "The numbers"."""
FEW, DENSE = 16, 200
"""Points up to which each is marked, and from which a line is drawn whole."""


@dataclass(frozen=True, kw_only=True)
class Line:
    name: str
    xs: Sequence[float]
    """Ascending."""
    ys: Sequence[float]
    """In the unit of the axis. NaN and infinity break the line."""
    marked: bool = False
    """A dot at every point: evaluations, which are few."""


@dataclass(frozen=True, kw_only=True)
class Level:
    """A horizontal line, like the budget."""

    name: str
    y: float
    is_line: bool = False
    """The line that is not to be crossed."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    title: str
    caption: str
    """What to see."""
    x_label: str
    y_label: str
    """Both with their units."""
    lines: Sequence[Line]
    levels: Sequence[Level] = ()
    from_zero: bool = False
    may_be_logarithmic: bool = False
    logarithmic_x: bool = False
    x_from_zero: bool = False
    share: bool = False
    """Values from 0 to 1: the axis shows all of that."""
    filled: bool = False
    """Below the first line: how much of what is under the level is used."""


def figure(chart: Chart) -> Markup | None:
    """None where there is not one finite point to draw."""
    drawn = [(line, thinned(line.xs, line.ys)) for line in chart.lines]
    points = [point for _, found in drawn for piece in found.pieces for point in piece]
    if not points:
        return None
    x, y = _axes(chart, points)
    svg = element(
        "svg",
        _grid(x, y),
        _fill(drawn[0][1], x, y) if chart.filled else None,
        *(_curve(line, found, x, y, at) for at, (line, found) in enumerate(drawn)),
        *(_level(level, y) for level in chart.levels),
        *(_broken(found, x) for _, found in drawn),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=f"{chart.title}. {_described(chart, drawn)}",
    )
    return element(
        "figure",
        element("h3", chart.title),
        _legend(chart) if len(chart.lines) > 1 else None,
        svg,
        element("figcaption", chart.caption, _said_of_nan(drawn, chart)),
        _table(chart, drawn),
    )


def _axes(chart: Chart, points: Sequence[tuple[float, float]]) -> tuple[Axis, Axis]:
    xs, ys = [x for x, _ in points], [y for _, y in points] + [level.y for level in chart.levels]
    steep = chart.may_be_logarithmic and spans_decades(ys)
    x = axis(chart.x_label, [*xs, *([0] if chart.x_from_zero else [])], room=0.0, logarithmic=chart.logarithmic_x)
    if chart.share and min(ys) >= 0 and max(ys) <= 1:
        return x, Axis(chart.y_label, 0.0, 1.0)
    label = f"{chart.y_label} (logarithmic)" if steep else chart.y_label
    return x, axis(label, ys, from_zero=chart.from_zero, logarithmic=steep, room=0.06)


def _x(x: Axis, value: float) -> float:
    return round(LEFT + x.place(value) * (WIDTH - LEFT - RIGHT), 1)


def _y(y: Axis, value: float) -> float:
    return round(HEIGHT - BOTTOM - y.place(value) * (HEIGHT - TOP - BOTTOM), 1)


def _grid(x: Axis, y: Axis) -> Markup:
    parts = []
    for value, words in y.ticks():
        at = _y(y, value)
        parts.append(element("path", d=f"M{LEFT} {at}H{WIDTH - RIGHT}", class_="grid"))
        parts.append(element("text", words, x=LEFT - 7, y=at + 4, text_anchor="end"))
    for value, words in x.ticks():
        at = _x(x, value)
        parts.append(element("path", d=f"M{at} {HEIGHT - BOTTOM}v4", class_="grid"))
        end = "end" if at > WIDTH - 34 else "middle"
        parts.append(element("text", words, x=at if end == "middle" else WIDTH - 2, y=HEIGHT - 27, text_anchor=end))
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(element("text", x.label, x=middle, y=HEIGHT - 7, text_anchor="middle", class_="label"))
    parts.append(element("text", y.label, x=2, y=11, class_="label"))
    return joined(*parts)


def _path(points: Iterable[tuple[float, float]], x: Axis, y: Axis) -> str:
    return "M" + "L".join(f"{_x(x, one):g} {_y(y, other):g}" for one, other in points)


def _dashes(line: Line, at: int) -> str | None:
    """None of a line so dense that it would look torn."""
    return DASHES[at] or None if len(line.xs) <= DENSE else None


def _curve(line: Line, found: Thinned, x: Axis, y: Axis, at: int) -> Markup:
    style = {"class_": f"curve {SERIES[at]}", "stroke_dasharray": _dashes(line, at)}
    parts = [element("path", d=_path(piece, x, y), **style) for piece in found.pieces if len(piece) > 1]
    every = [point for piece in found.pieces for point in piece]
    alone = [piece[0] for piece in found.pieces if len(piece) == 1]
    dots = every if line.marked or len(every) <= FEW else alone
    parts += [element("circle", cx=_x(x, one), cy=_y(y, two), r=2.6, class_=f"dot {SERIES[at]}") for one, two in dots]
    return joined(*parts)


def _fill(found: Thinned, x: Axis, y: Axis) -> Markup:
    floor = HEIGHT - BOTTOM
    pieces = [piece for piece in found.pieces if len(piece) > 1]
    return joined(
        *(element("path", d=f"{_path(piece, x, y)}V{floor}H{_x(x, piece[0][0]):g}Z", class_="fill") for piece in pieces)
    )


def _level(level: Level, y: Axis) -> Markup:
    at, kind = _y(y, level.y), "line" if level.is_line else "quiet"
    return joined(
        element("path", d=f"M{LEFT} {at}H{WIDTH - RIGHT}", class_=f"level {kind}"),
        element("text", level.name, x=WIDTH - RIGHT - 4, y=at - 5, text_anchor="end", class_=f"on {kind}"),
    )


def _broken(found: Thinned, x: Axis) -> Markup:
    return joined(
        *(
            element("text", "\N{MULTIPLICATION SIGN}", x=_x(x, at), y=TOP + 10, text_anchor="middle", class_="on line")
            for at in found.not_finite
        )
    )


def _legend(chart: Chart) -> Markup:
    def swatch(line: Line, at: int) -> Markup:
        stroke = element("path", d="M0 5H26", class_=f"curve {SERIES[at]}", stroke_dasharray=_dashes(line, at))
        return element("svg", stroke, viewBox="0 0 26 10", width=26, height=10, aria_hidden="true")

    entries = [
        element("li", swatch(line, at), " ", shortened(line.name, most=80)) for at, line in enumerate(chart.lines)
    ]
    return element("ul", *entries, class_="legend")


def _said_of_nan(drawn: Sequence[tuple[Line, Thinned]], chart: Chart) -> str | None:
    said = [
        f" Of {line.name}, {found.not_finite_count:,} of {len(line.ys):,} values are NaN or infinite, the first at"
        f" {found.not_finite[0]:,.6g} ({chart.x_label}): see the crosses."
        for line, found in drawn
        if found.not_finite
    ]
    return "".join(said) or None


def _described(chart: Chart, drawn: Sequence[tuple[Line, Thinned]]) -> str:
    said = [f"{chart.y_label} over {chart.x_label}."]
    for line, found in drawn:
        points = [point for piece in found.pieces for point in piece]
        if points:
            low, high = min(points, key=lambda one: one[1]), max(points, key=lambda one: one[1])
            said.append(
                f"{line.name}: from {points[0][1]:,.4g} at {points[0][0]:,.6g} to {points[-1][1]:,.4g} at"
                f" {points[-1][0]:,.6g}; lowest {low[1]:,.4g} at {low[0]:,.6g}, highest {high[1]:,.4g} at"
                f" {high[0]:,.6g}."
            )
    said += [f"{level.name}: {level.y:,.6g}." for level in chart.levels]
    return " ".join(said)


def _table(chart: Chart, drawn: Sequence[tuple[Line, Thinned]]) -> Markup:
    """Some of the points that are drawn, the first and the last among them."""
    tables = []
    for line, found in drawn:
        points = [point for piece in found.pieces for point in piece]
        if not points:
            continue
        chosen = sorted({round(part * (len(points) - 1) / (ROWS - 1)) for part in range(ROWS)})
        rows = [
            element("tr", element("th", f"{points[at][0]:,.6g}", scope="row"), element("td", f"{points[at][1]:,.5g}"))
            for at in chosen
        ]
        head = element("tr", element("th", chart.x_label, scope="col"), element("th", chart.y_label, scope="col"))
        name = shortened(line.name, most=80)
        caption = element("caption", f"{name}: {len(chosen)} of {len(line.xs):,} points")
        tables.append(element("table", caption, element("thead", head), element("tbody", *rows), class_="numbers"))
    inside = element("div", *tables, class_="scroll", tabindex="0", role="region", aria_label=f"Numbers: {chart.title}")
    return element("details", element("summary", "The numbers"), inside)
