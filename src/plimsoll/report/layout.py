"""Number formats and text columns that every table shares.

Bytes, counts and times come from `units.py`; shares, rates and differences, which need two of them, are here.
An unknown value prints as `UNKNOWN`, never as zero.
"""

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll.units import MIB, format_bytes, format_seconds

UNKNOWN = "-"
WIDTH = 100


Cells = Mapping[str, tuple[str, Callable[[Any], str]]]
"""Columns of a table by their titles: `l` (left) or `r` (right), and a function from a row to its text."""


def known(value: float | None, form: str | Callable[[float], str]) -> str:
    """Returns `value` in a format like `,.2f`, or as a function formats it; `UNKNOWN` if it is None."""
    if value is None:
        return UNKNOWN
    return format(value, form) if isinstance(form, str) else form(value)


def figure(name: str, value: Any) -> str:
    """Returns a figure as text, in the unit that its name ends in; of several each with its own name."""
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
    """Returns `81.3 %`: the part of `whole`, or `UNKNOWN` if one of them is unknown or the whole is zero."""
    return UNKNOWN if part is None or not whole else f"{100 * part / whole:.1f} %"


def format_used(part: float | None, whole: float | None) -> str:
    """Returns `1.5 GiB of 2.0 GiB (75.0 %)`, or `UNKNOWN`."""
    if part is None or not whole:
        return UNKNOWN
    return f"{format_bytes(part)} of {format_bytes(whole)} ({format_share(part, whole)})"


def format_rate(per_second: float, unit: str) -> str:
    """Returns `38,095 tokens/s`; below 100 with three significant digits, because a whole number is too coarse."""
    number = f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"
    return f"{number} {unit}/s"


def format_known_bytes(size: float | None) -> str:
    """Returns `3.1 GiB`, or `UNKNOWN` for None."""
    return known(size, format_bytes)


def format_mib_difference(measured: int | None, predicted: int | None) -> str:
    """Returns `-11.9 MiB`: measured minus predicted, always in MiB, so that a column can be compared by eye."""
    if measured is None or predicted is None:
        return UNKNOWN
    return f"{(measured - predicted) / MIB:+.1f} MiB"


def format_difference_share(measured: float | None, predicted: float | None) -> str:
    """Returns `-1.5 %`: measured minus predicted, as a share of the prediction."""
    if measured is None or not predicted:
        return UNKNOWN
    return f"{100 * (measured - predicted) / predicted:+.1f} %"


def columns(rows: Sequence[Sequence[str]], *, align: str, indent: int = 2) -> list[str]:
    """Returns a line of text per row, with columns two spaces apart.

    Args:
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
    """Texts in rows under a header. A terminal prints its lines, and a page draws the same cells."""

    rows: Sequence[Sequence[str]]
    align: str = ""
    """Letter per column: `r` (right) for numbers; without one a column is of words."""
    header: Sequence[str] = ()
    title: str = ""

    def lines(self, *, indent: int = 2) -> list[str]:
        """Returns a line for the header and each row, without the title."""
        header = [self.header] if self.header else []
        return columns([*header, *self.rows], align=self.align, indent=indent)


def table(rows: Iterable[Any], cells: Cells, *, title: str = "") -> Table:
    """Returns a table of any values, each a row."""
    texts = [[text(row) for _, text in cells.values()] for row in rows]
    align = "".join(side for side, _ in cells.values())
    return Table(title=title, header=[*cells], rows=texts, align=align)


def labelled(label: str, text: str, *, width: int = 18, indent: int = 2) -> list[str]:
    """Returns `label   text`, wrapped at `WIDTH` characters with further lines indented below the text."""
    first = " " * indent + label.ljust(width) + "  "
    folded = textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=" " * len(first), break_on_hyphens=False
    )
    return folded or [first.rstrip()]


def all_labelled(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Returns the lines of several labels with their texts."""
    return [line for label, text in rows for line in labelled(label, text)]
