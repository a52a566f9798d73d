"""Number formats and text columns for all tables.

Bytes, counts and times are formatted in `units.py`; shares, rates and differences here. An unknown value is printed as
`UNKNOWN`, never as zero.
"""

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll.units import MIB, format_bytes, format_seconds

UNKNOWN = "-"
"""Text of an unknown value."""
WIDTH = 100
"""Characters of a line after which text is wrapped."""


Cells = Mapping[str, tuple[str, Callable[[Any], str]]]
"""Map from a column's title to its alignment, `l` (left) or `r` (right), and a function from a row to a cell's text."""


def known(value: float | None, form: str | Callable[[float], str]) -> str:
    """Formats a value by a format like `,.2f` or by a function. Returns `UNKNOWN` for None."""
    if value is None:
        return UNKNOWN
    return format(value, form) if isinstance(form, str) else form(value)


def figure(name: str, value: Any) -> str:
    """Formats a number in the unit that its name ends with, like `_bytes` or `_seconds`.

    Args:
        name: Name of the number.
        value: The number, or a mapping from names to numbers, which are printed after their names.
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{part} {figure(name, each)}" for part, each in value.items())
    if name.endswith("flops"):
        return f"{value / 1e12:,.4g} TFLOP/s"
    if name.endswith("bandwidth"):
        return f"{value / 1e9:,.0f} GB/s"
    if name.endswith("bytes_per_second"):
        return f"{format_bytes(value)}/s"
    if name.endswith("bytes"):
        return format_bytes(value)
    if name.endswith("seconds"):
        return format_seconds(value)
    return "missing" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def format_share(part: float | None, whole: float | None) -> str:
    """Formats `part` as a percentage of `whole`, like `81.3 %`; `UNKNOWN` if either is unknown or `whole` is zero."""
    return UNKNOWN if part is None or not whole else f"{100 * part / whole:.1f} %"


def format_used(part: float | None, whole: float | None) -> str:
    """Formats used bytes like `1.5 GiB of 2.0 GiB (75.0 %)`; `UNKNOWN` if either is unknown or `whole` is zero."""
    if part is None or not whole:
        return UNKNOWN
    return f"{format_bytes(part)} of {format_bytes(whole)} ({format_share(part, whole)})"


def format_rate(per_second: float, unit: str) -> str:
    """Formats a rate like `38,095 tokens/s`; below 100 with three significant digits."""
    number = f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"
    return f"{number} {unit}/s"


def format_known_bytes(size: float | None) -> str:
    """Formats bytes like `3.1 GiB`; `UNKNOWN` for None."""
    return known(size, format_bytes)


def format_mib_difference(measured: int | None, predicted: int | None) -> str:
    """Formats measured minus predicted bytes like `-11.9 MiB`, always in MiB, so that a column is easy to compare."""
    if measured is None or predicted is None:
        return UNKNOWN
    return f"{(measured - predicted) / MIB:+.1f} MiB"


def format_difference_share(measured: float | None, predicted: float | None) -> str:
    """Formats measured minus predicted, relative to the prediction, like `-1.5 %`."""
    if measured is None or not predicted:
        return UNKNOWN
    return f"{100 * (measured - predicted) / predicted:+.1f} %"


def columns(rows: Sequence[Sequence[str]], *, align: str, indent: int = 2) -> list[str]:
    """Formats rows as lines of text, with aligned columns two spaces apart.

    Args:
        rows: Texts of the cells, row by row.
        align: A letter per column: `l` (left) or `r` (right).
        indent: Spaces before the first column.
    """
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(row, widths, align, strict=True)
        ]
        lines.append((" " * indent + "  ".join(cells)).rstrip())
    return lines


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of texts under a header, for a terminal or an HTML page."""

    rows: Sequence[Sequence[str]]
    align: str = ""
    """A letter per column: `l` (left), or `r` (right) for numbers."""
    header: Sequence[str] = ()
    title: str = ""

    def lines(self, *, indent: int = 2) -> list[str]:
        """Returns the header and the rows as lines of text, without the title."""
        header = [self.header] if self.header else []
        return columns([*header, *self.rows], align=self.align, indent=indent)


def table(rows: Iterable[Any], cells: Cells, *, title: str = "") -> Table:
    """Makes a table with one row per value.

    Args:
        rows: The values.
        cells: Columns of the table.
        title: Title of the table.
    """
    texts = [[text(row) for _, text in cells.values()] for row in rows]
    align = "".join(side for side, _ in cells.values())
    return Table(title=title, header=[*cells], rows=texts, align=align)


def labelled(label: str, text: str, *, width: int = 18, indent: int = 2) -> list[str]:
    """Formats `label   text` as lines, wrapped at `WIDTH` characters. Further lines are indented below the text."""
    first = " " * indent + label.ljust(width) + "  "
    folded = textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=" " * len(first), break_on_hyphens=False
    )
    return folded or [first.rstrip()]


def all_labelled(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Formats pairs of label and text as lines, each pair by `labelled`."""
    return [line for label, text in rows for line in labelled(label, text)]
