"""Examples of what a trained model makes: texts, puzzles before and after, curves, tables.

A recipe describes them in plain values (`Recipe.exhibits`), and knows nothing about pages:

    {"kind": "texts", "title", "caption", "items": [{"prompt", "text"}]}
    {"kind": "grids", "title", "caption", "items": [{"name", "before": [rows], "after": [rows], "said": [lines]}]}
    {"kind": "curves", "title", "caption", "x_label", "y_label", "x": [...], "y": {name: [...]}, "logarithmic": bool}
    {"kind": "table", "title", "caption", "header": [...], "rows": [[...]]}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll.report.page.chart import Chart, Line
from plimsoll.report.page.markup import Markup, element, scrolling, shortened, table
from plimsoll.report.page.palette import SERIES

MOST_ITEMS, MOST_ROWS, MOST_TEXT = 6, 60, 4000
MOST_PIECES, ROWS_OF_A_PIECE = 3, 12

Exhibit = Mapping[str, Any]


def exhibit_html(exhibit: Exhibit) -> Markup | None:
    """Returns the exhibit as HTML; None for an unknown kind, and for a curve without a finite point."""
    if exhibit["kind"] == "curves":
        lines = [Line(name=name, xs=exhibit["x"], ys=ys) for name, ys in list(exhibit["y"].items())[: len(SERIES)]]
        words = {name: exhibit[name] for name in ("title", "caption", "x_label", "y_label")}
        logarithmic, may_be = (bool(exhibit.get(name)) for name in ("logarithmic", "may_be_logarithmic"))
        return Chart(**words, lines=lines, logarithmic_x=logarithmic, may_be_logarithmic=may_be).figure()
    draw = {"texts": _texts, "grids": _grids, "table": _table}.get(exhibit["kind"])
    if draw is None:
        return None
    title, caption = (shortened(exhibit[name]) for name in ("title", "caption"))
    return element("figure", element("h3", title), draw(exhibit), element("figcaption", caption), class_="whole")


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
    return element("div", *items, class_="pair")


def _grids(exhibit: Exhibit) -> Markup:
    items = []
    for item in exhibit["items"][:MOST_ITEMS]:
        before, after = ("\n".join(shortened(row) for row in item[side]) for side in ("before", "after"))
        name = shortened(item["name"])
        items.append(
            element(
                "div",
                element("h4", name, class_="quiet"),
                element("pre", before, role="img", aria_label=f"{name}, before: {before}"),
                element("pre", after, role="img", aria_label=f"{name}, the answer: {after}"),
                element("p", "; ".join(shortened(line) for line in item["said"]), class_="quiet"),
            )
        )
    return element("div", *items, class_="grids")


def _table(exhibit: Exhibit) -> Markup:
    """Returns a table; a long one in pieces side by side."""
    rows = [[shortened(cell) for cell in row] for row in exhibit["rows"][:MOST_ROWS]]
    pieces = min(MOST_PIECES, -(-len(rows) // ROWS_OF_A_PIECE)) or 1
    size = -(-len(rows) // pieces) or 1
    header = [shortened(title) for title in exhibit["header"]]
    tables = [table(rows[start : start + size], header=header) for start in range(0, len(rows), size)]
    return scrolling(*tables, name=shortened(exhibit["title"]), class_="scroll grids")
