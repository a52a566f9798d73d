"""What `plimsoll prepare` and `plimsoll inspect` print of a set of puzzles. Pure: dictionaries in, text out."""

from collections.abc import Mapping
from typing import Any

from plimsoll.report.layout import columns, labelled
from plimsoll.units import format_bytes, format_seconds

REMARKS = {
    "left_out": "left out, since the test split has them too",
    "longer_paths": "answers whose path is not a shortest one",
    "tasks_with_fewer_augmentations": "tasks that have fewer augmentations than were asked for",
    "test_pairs_without_solution": "test pairs whose solution is not there: not trained on, and not scored",
}
"""Counts of `prepare` that are printed if they are not 0."""


def prepared_text(found: Mapping[str, Any]) -> str:
    """Returns what `plimsoll prepare sudoku`, `maze` or `arc` prints."""
    time = f"{format_seconds(found['seconds'])} ({found['examples_per_second']:,.0f} examples/s)"
    sizes = f"{found['examples']:,} examples of {found['seq_len']:,} tokens, {format_bytes(found['bytes'])}"
    lines = [f"{found['path']}: {sizes}, in {time}"]
    for name, use in (("train", "to train on"), ("test", "to test on")):
        counts = found[name]
        lines.append(
            f"  {use}: {counts['groups']:,} groups, {counts['puzzles']:,} puzzles, {counts['examples']:,} examples"
        )
    lines += [f"  {words}: {found[name]:,}" for name, words in REMARKS.items() if found.get(name)]
    return "\n".join(lines)


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
