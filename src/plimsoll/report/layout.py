"""How numbers are written and set in columns: the units of every table, once.

Bytes, counts and times come from `units.py`; here are shares, rates and differences, which a table makes of
two of them. What is not known prints as `UNKNOWN`, never as zero.
"""

import textwrap
from collections.abc import Sequence

from plimsoll.units import MIB, format_bytes

UNKNOWN = "-"
WIDTH = 100


def format_share(part: float, whole: float) -> str:
    """`81.3 %` of `whole`."""
    return f"{100 * part / whole:.1f} %" if whole else UNKNOWN


def format_rate(per_second: float, unit: str) -> str:
    """`38,095 tokens/s`; three digits below 100, where a whole number would round too much away."""
    number = f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"
    return f"{number} {unit}/s"


def format_known_bytes(size: float | None) -> str:
    return UNKNOWN if size is None else format_bytes(size)


def format_mib_difference(measured: int | None, predicted: int | None) -> str:
    """`-11.9 MiB`: measured minus predicted, in one unit so that a column can be read down."""
    if measured is None or predicted is None:
        return UNKNOWN
    return f"{(measured - predicted) / MIB:+.1f} MiB"


def format_difference_share(measured: float | None, predicted: float | None) -> str:
    """`-1.5 %` of what was predicted."""
    if measured is None or not predicted:
        return UNKNOWN
    return f"{100 * (measured - predicted) / predicted:+.1f} %"


def columns(rows: Sequence[Sequence[str]], *, align: str, indent: int = 2) -> list[str]:
    """Lines of text. `align` has a letter per column: `l` or `r`; columns are two blanks apart."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(row, widths, align, strict=True)
        ]
        lines.append((" " * indent + "  ".join(cells)).rstrip())
    return lines


def labelled(label: str, text: str, *, width: int = 18, indent: int = 2) -> list[str]:
    """`label   text`, folded under itself where the text is longer than a line."""
    first = " " * indent + label.ljust(width) + "  "
    folded = textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=" " * len(first), break_on_hyphens=False
    )
    return folded or [first.rstrip()]
