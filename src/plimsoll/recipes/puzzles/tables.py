"""What `plimsoll prepare` and `plimsoll inspect` say of a set of puzzles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from plimsoll.files.folder import opened
from plimsoll.recipes.puzzles.dataset import IDENTIFIERS, INPUTS, LABELS, SPLITS, PuzzleSet
from plimsoll.report.layout import columns, labelled
from plimsoll.units import format_bytes, format_seconds

SHOWN = 3
"""Number of identifiers whose names are shown."""
REMARKS = {
    "left_out": "left out, since the test split has them too",
    "longer_paths": "answers whose path is not a shortest one",
    "tasks_with_fewer_augmentations": "tasks that have fewer augmentations than were asked for",
    "test_pairs_without_solution": "test pairs whose solution is not there: not trained on, and not scored",
}
"""Counts of `prepare` that are printed if they are not 0."""


def prepared_text(answer: Mapping[str, Any]) -> str:
    """Returns what `plimsoll prepare sudoku`, `maze` or `arc` prints."""
    time = f"{format_seconds(answer['seconds'])} ({answer['examples_per_second']:,.0f} examples/s)"
    sizes = f"{answer['examples']:,} examples of {answer['seq_len']:,} tokens, {format_bytes(answer['bytes'])}"
    lines = [f"{answer['path']}: {sizes}, in {time}"]
    for name in SPLITS:
        counts = ", ".join(f"{answer[name][unit]:,} {unit}" for unit in ("groups", "puzzles", "examples"))
        lines.append(f"  to {name} on: {counts}")
    lines += [f"  {words}: {answer[name]:,}" for name, words in REMARKS.items() if answer.get(name)]
    return "\n".join(lines)


def describe_puzzles(folder: Path | str) -> dict[str, Any]:
    """Returns sizes of the set and of its splits. Reads all of it, 4 MiB at a time, and refuses an incomplete one."""
    folder, splits = Path(folder).expanduser(), {}
    sets = [PuzzleSet(folder, name) for name in SPLITS if (folder / name / "dataset.json").is_file()]
    for split in sets:
        split.check()
        first = split.batch(np.zeros(1, np.int64))
        splits[split.split] = {
            "groups": split.groups,
            "puzzles": split.puzzles,
            "examples": split.examples,
            "mean_puzzle_examples": split.mean_puzzle_examples,
            "first": {name: first[name][0].tolist() for name in (INPUTS, LABELS, IDENTIFIERS)},
        }
    ours = opened(folder)
    return {
        "path": str(folder),
        "bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
        "seq_len": sets[0].seq_len,
        "vocab_size": sets[0].vocab_size,
        "identifiers": sets[0].identifiers,
        "names": sets[0].names()[1 : 1 + SHOWN],
        "splits": splits,
        "made_with": None if ours is None else ours.made_with.options,
    }


def puzzles_table(about: Mapping[str, Any]) -> str:
    """Returns what `plimsoll inspect` prints, given what `describe_puzzles` returns."""
    sizes = f"{about['seq_len']:,} tokens of a vocabulary of {about['vocab_size']:,}"
    lines = [f"{about['path']}: puzzles, {format_bytes(about['bytes'])} on disk", "", *labelled("an example", sizes)]
    named = about["identifiers"] - 1
    shown = ", ".join(about["names"]) + (", ..." if named > len(about["names"]) else "")
    lines += labelled("identifiers", f"{named:,}, like {shown}" if named else "none: every puzzle has the blank one")
    rows = [("split", "groups", "puzzles", "examples", "examples of a puzzle")]
    for name, split in about["splits"].items():
        groups, puzzles, examples = (f"{split[unit]:,}" for unit in ("groups", "puzzles", "examples"))
        rows.append((name, groups, puzzles, examples, f"{split['mean_puzzle_examples']:.3g}"))
    lines += ["", *columns(rows, align="lrrrr")]
    if about["made_with"] is not None:
        options = [(f"  --{name.replace('_', '-')}", str(value)) for name, value in about["made_with"].items()]
        lines += ["", *labelled("made with", ""), *columns(options, align="ll")]
    return "\n".join(lines)
