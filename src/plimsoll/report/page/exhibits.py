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

from plimsoll.report.page.blocks import Block, Columns, Exhibit, Heading, Table, Text
from plimsoll.report.page.chart import Chart, Line
from plimsoll.report.page.palette import SERIES

MOST_ITEMS, MOST_ROWS = 6, 60
ROWS_OF_A_PIECE = 20


def blocks_of(exhibit: Mapping[str, Any]) -> list[Block]:
    """Returns the exhibit as blocks; nothing for an unknown kind."""
    kind = exhibit["kind"]
    if kind == "curves":
        return [_curves(exhibit)]
    if kind == "table":
        return _table(exhibit)
    if kind in ("texts", "grids"):
        return [Exhibit({**exhibit, "items": exhibit["items"][:MOST_ITEMS]})]
    return []


def _curves(exhibit: Mapping[str, Any]) -> Chart:
    curves = list(exhibit["y"].items())[: len(SERIES)]
    return Chart(
        title=exhibit["title"],
        caption=exhibit["caption"],
        x_label=exhibit["x_label"],
        y_label=exhibit["y_label"],
        lines=[Line(name=name, xs=exhibit["x"], ys=ys) for name, ys in curves],
        logarithmic_x=bool(exhibit.get("logarithmic")),
        may_be_logarithmic=bool(exhibit.get("may_be_logarithmic")),
    )


def _table(exhibit: Mapping[str, Any]) -> list[Block]:
    """Returns a table; a long one in pieces side by side."""
    rows = exhibit["rows"][:MOST_ROWS]
    starts = range(0, len(rows), ROWS_OF_A_PIECE)
    pieces = [rows[start : start + ROWS_OF_A_PIECE] for start in starts]
    tables = [Table(title=exhibit["title"], header=exhibit["header"], rows=piece) for piece in pieces]
    return [Heading(exhibit["title"]), Columns([[table] for table in tables]), Text(exhibit["caption"], "quiet")]
