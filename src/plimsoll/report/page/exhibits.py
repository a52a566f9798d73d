"""What a recipe makes, drawn: texts, puzzles before and after, curves, bars, tables. The recipe says what, in plain
values (`Recipe.exhibits`, `inference/showcase.py`), and knows nothing of pages:

    {"kind": "texts", "title", "caption", "items": [{"prompt", "text"}]}
    {"kind": "grids", "title", "caption", "items": [{"name", "before": [rows], "after": [rows], "said": [lines]}]}
    {"kind": "curves", "title", "caption", "x_label", "y_label", "x": [...], "y": {name: [...]}, "logarithmic": bool}
    {"kind": "table", "title", "caption", "header": [...], "rows": [[...]]}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll.report.page.chart import Chart, Line, figure
from plimsoll.report.page.markup import Markup, element, shortened
from plimsoll.report.page.palette import SERIES

MOST_ITEMS, MOST_ROWS, MOST_TEXT = 6, 60, 4000
MOST_PIECES, ROWS_OF_A_PIECE = 3, 12

Exhibit = Mapping[str, Any]


def drawn(exhibit: Exhibit) -> Markup | None:
    """None of a kind that this version does not know, and of a curve without a finite point."""
    draw = {"texts": _texts, "grids": _grids, "curves": _curves, "table": _table}.get(exhibit["kind"])
    return draw(exhibit) if draw else None


def _texts(exhibit: Exhibit) -> Markup:
    items = [
        element(
            "pre",
            element("b", shortened(item["prompt"])),
            shortened(item["text"], most=MOST_TEXT),
            class_="wrapped sample",
            tabindex="0",
            role="region",
            aria_label=f"{shortened(exhibit['title'])}, {number} of {len(exhibit['items'])}",
        )
        for number, item in enumerate(exhibit["items"][:MOST_ITEMS], start=1)
    ]
    return _framed(exhibit, element("div", *items, class_="pair"))


def _grids(exhibit: Exhibit) -> Markup:
    return _framed(exhibit, element("div", *(_grid(item) for item in exhibit["items"][:MOST_ITEMS]), class_="grids"))


def _grid(item: Mapping[str, Any]) -> Markup:
    before, after = ("\n".join(shortened(row) for row in item[side]) for side in ("before", "after"))
    name = shortened(item["name"])
    return element(
        "div",
        element("h4", name, class_="quiet"),
        element("pre", before, role="img", aria_label=f"{name}, before: {before}"),
        element("pre", after, role="img", aria_label=f"{name}, the answer: {after}"),
        element("p", "; ".join(shortened(line) for line in item["said"]), class_="quiet"),
    )


def _curves(exhibit: Exhibit) -> Markup | None:
    lines = [Line(name=name, xs=exhibit["x"], ys=ys) for name, ys in list(exhibit["y"].items())[: len(SERIES)]]
    return figure(
        Chart(
            title=exhibit["title"],
            caption=exhibit["caption"],
            x_label=exhibit["x_label"],
            y_label=exhibit["y_label"],
            lines=lines,
            logarithmic_x=bool(exhibit.get("logarithmic")),
            may_be_logarithmic=bool(exhibit.get("may_be_logarithmic")),
        )
    )


def _table(exhibit: Exhibit) -> Markup:
    """A long one in pieces side by side."""
    rows = exhibit["rows"][:MOST_ROWS]
    pieces = min(MOST_PIECES, -(-len(rows) // ROWS_OF_A_PIECE)) or 1
    size = -(-len(rows) // pieces) or 1
    head = element(
        "thead", element("tr", *(element("th", shortened(title), scope="col") for title in exhibit["header"]))
    )
    tables = [
        element("table", head, element("tbody", *map(_row, rows[start : start + size])))
        for start in range(0, len(rows), size)
    ]
    title = shortened(exhibit["title"])
    inside = element("div", *tables, class_="scroll grids", tabindex="0", role="region", aria_label=title)
    return _framed(exhibit, inside)


def _row(row: Sequence[Any]) -> Markup:
    first, *others = (shortened(cell) for cell in row)
    return element("tr", element("th", first, scope="row"), *(element("td", cell) for cell in others))


def _framed(exhibit: Exhibit, *content: Markup) -> Markup:
    title, caption = (shortened(exhibit[name]) for name in ("title", "caption"))
    return element("figure", element("h3", title), *content, element("figcaption", caption), class_="whole")
