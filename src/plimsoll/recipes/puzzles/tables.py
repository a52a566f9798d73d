"""Texts that `plimsoll prepare` and `plimsoll inspect` print about a data set of puzzles."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plimsoll.files.folder import opened
from plimsoll.recipes.puzzles.dataset import SPLITS, PuzzleSet
from plimsoll.report.layout import columns, labelled
from plimsoll.units import format_bytes, format_seconds

COUNTS = ("groups", "puzzles", "examples")


def prepared_text(answer: Mapping[str, Any]) -> str:
    """Returns the text that `plimsoll prepare sudoku`, `maze` or `arc` prints."""
    lines = [f"{answer['path']}: puzzles of {answer['seq_len']:,} tokens, in {format_seconds(answer['seconds'])}"]
    for name in SPLITS:
        counts = ", ".join(f"{answer[name][unit]:,} {unit}" for unit in COUNTS)
        lines.append(f"  to {name} on: {counts}")
    return "\n".join(lines)


def describe_puzzles(folder: Path | str) -> dict[str, Any]:
    """Returns the sizes of a data set and its splits.

    Reads all tokens, 4 MiB at a time; raises DataError if the set is incomplete.
    """
    folder = Path(folder).expanduser()
    sets = {name: PuzzleSet(folder, name) for name in SPLITS}
    for puzzles in sets.values():
        puzzles.check()
    splits = {name: {unit: getattr(puzzles, unit) for unit in COUNTS} for name, puzzles in sets.items()}
    train = sets["train"]
    ours = opened(folder)
    return {
        "path": str(folder),
        "bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
        "seq_len": train.seq_len,
        "vocab_size": train.vocab_size,
        "identifiers": train.identifiers,
        "splits": splits,
        "made_with": {} if ours is None else ours.made_with.options,
    }


def puzzles_table(about: Mapping[str, Any]) -> str:
    """Returns the text that `plimsoll inspect` prints for the result of `describe_puzzles`."""
    sizes = f"{about['seq_len']:,} tokens of a vocabulary of {about['vocab_size']:,}"
    rows = [("split", *COUNTS)]
    rows += [(name, *(f"{split[unit]:,}" for unit in COUNTS)) for name, split in about["splits"].items()]
    options = [(f"  --{name.replace('_', '-')}", str(value)) for name, value in about["made_with"].items()]
    return "\n".join(
        [
            f"{about['path']}: puzzles, {format_bytes(about['bytes'])} on disk",
            "",
            *labelled("an example", sizes),
            *labelled("identifiers", f"{about['identifiers']:,}, with the blank one"),
            "",
            *columns(rows, align="lrrr"),
            "",
            *labelled("made with", ""),
            *columns(options, align="ll"),
        ]
    )
