"""What `plimsoll inspect` prints of a set of puzzles. Pure: a description in, text out."""

from collections.abc import Mapping
from typing import Any

from plimsoll.report.layout import columns, labelled
from plimsoll.units import format_bytes


def puzzles_table(found: Mapping[str, Any]) -> str:
    sizes = f"{found['seq_len']:,} tokens of a vocabulary of {found['vocab_size']:,}"
    lines = [f"{found['path']}: puzzles, {format_bytes(found['bytes'])} on disk", "", *labelled("an example", sizes)]
    named = found["identifiers"] - 1
    shown = ", ".join(found["names"]) + (", ..." if named > len(found["names"]) else "")
    lines += labelled("identifiers", f"{named:,}, like {shown}" if named else "none: every puzzle has the blank one")
    header = ("split", "groups", "puzzles", "examples", "examples of a puzzle")
    lines += ["", *columns([header, *(_row(name, one) for name, one in found["splits"].items())], align="lrrrr")]
    if found["made_with"] is not None:
        told = [(f"  --{name.replace('_', '-')}", str(value)) for name, value in found["made_with"].items()]
        lines += ["", *labelled("made with", ""), *columns(told, align="ll")]
    return "\n".join(lines)


def _row(name: str, one: Mapping[str, Any]) -> tuple[str, ...]:
    counts = (f"{one[count]:,}" for count in ("groups", "puzzles", "examples"))
    return name, *counts, f"{one['mean_puzzle_examples']:.3g}"
