"""Description of a set of puzzles for `plimsoll inspect`. Every token of it is checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from plimsoll.recipes.puzzles.dataset import IDENTIFIERS, INPUTS, LABELS, SPLITS, PuzzleSet

NAMES = 3
"""Number of identifiers whose names are shown."""


def describe_puzzles(folder: Path | str) -> dict[str, Any]:
    """Returns sizes of the set and of its splits. Reads all of it, 4 MiB at a time, and refuses an incomplete one."""
    folder = Path(folder).expanduser()
    splits = {name: PuzzleSet(folder, name) for name in SPLITS if (folder / name / "dataset.json").is_file()}
    for split in splits.values():
        split.check()
    (first, *_) = splits.values()
    names, made_with = first.names(), folder / "made_with.json"
    return {
        "path": str(folder),
        "bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
        "seq_len": first.seq_len,
        "vocab_size": first.vocab_size,
        "identifiers": first.identifiers,
        "names": names[1 : 1 + NAMES],
        "splits": {name: _described(split) for name, split in splits.items()},
        "made_with": json.loads(made_with.read_text("utf-8")) if made_with.is_file() else None,
    }


def _described(split: PuzzleSet) -> dict[str, Any]:
    batch = split.batch(np.zeros(1, np.int64))
    return {
        "groups": split.groups,
        "puzzles": split.puzzles,
        "examples": split.examples,
        "mean_puzzle_examples": split.mean_puzzle_examples,
        "first": {name: batch[name][0].tolist() for name in (INPUTS, LABELS, IDENTIFIERS)},
    }
