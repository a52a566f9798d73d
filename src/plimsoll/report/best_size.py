"""The sizes that `--best-size` has tried, as a table, and the options that follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll.planned import BestSize, TriedSize
from plimsoll.report.layout import Cells, all_labelled, format_known_bytes, known, table
from plimsoll.units import format_count, format_seconds

LAW = "Hoffmann et al. 2022"
SOURCES = {"measured": "timed here", "kernels": "estimated from the kernels", "roofline": "estimated from its rates"}


def _tokens_per_parameter(row: TriedSize) -> float | None:
    return None if row.tokens is None or row.parameters is None else row.tokens / row.parameters


def _loss(row: TriedSize) -> str:
    if row.loss is None or row.loss_range is None:
        return "does not fit" if row.refused else known(row.loss, ".2f")
    return f"{row.loss:.2f} ({row.loss_range[0]:.2f} to {row.loss_range[1]:.2f})"


CELLS: Cells = {
    "parameters": ("r", lambda row: format_count(row.target_params)),
    "tokens/s": ("r", lambda row: known(row.tokens_per_second, ",.0f")),
    "steps": ("r", lambda row: known(row.steps, ",.0f")),
    "tokens": ("r", lambda row: known(row.tokens, format_count)),
    "per parameter": ("r", lambda row: known(_tokens_per_parameter(row), ".1f")),
    "predicted loss": ("l", _loss),
    "peak": ("r", lambda row: format_known_bytes(row.peak_bytes)),
}


def option_words(fields: Mapping[str, Any]) -> str:
    """Returns options as they are typed, like `--target-params 1700000 --steps 2000`."""
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in fields.items())


def best_size_lines(found: BestSize) -> list[str]:
    """Returns a table of the sizes that were tried, the one that was chosen, and how certain that is."""
    chosen = found.fields["target_params"]
    title, *rows = table(found.tried, CELLS)
    marked = [
        f"{'*' if each.target_params == chosen else ' '}{row[1:]}" for each, row in zip(found.tried, rows, strict=True)
    ]
    runs = f"corrected by {', '.join(found.runs)}" if found.runs else "no finished run of this recipe corrects it"
    least, most = map(format_count, found.likely_sizes)
    between = f"the best size is between {least} and {most}" if least != most else f"{least} is the best that fits"
    return [
        f"size with the lowest predicted loss after {format_seconds(3600 * found.hours)} (nats per token)",
        "",
        title,
        *marked,
        "",
        *all_labelled(
            [
                ("chosen", option_words(found.fields)),
                (
                    "certain",
                    f"{between} for 9 of 10 laws as likely as this one; for 9 of 10 the chosen one's loss is at most"
                    f" {found.likely_excess:.1%} above the lowest",
                ),
                ("law", f"{LAW}, {runs}"),
                (
                    "time",
                    f"{format_seconds(found.reserved_seconds)} of it are left for the start, evaluations and saves; the"
                    f" step is {SOURCES[found.source]}",
                ),
                *(("note", note) for note in found.notes),
            ]
        ),
    ]
