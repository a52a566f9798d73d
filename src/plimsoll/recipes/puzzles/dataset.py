"""A data set of puzzles in the published on-disk format, checked when it is opened.

`FOLDER/{train,test}/dataset.json` has its sizes; `all__inputs.npy` and `all__labels.npy` hold a row of tokens per
example, `all__puzzle_identifiers.npy` a number per puzzle, `all__puzzle_indices.npy` the first example of each puzzle
and, last, the number of examples, `all__group_indices.npy` likewise the first puzzle of each group.
`FOLDER/identifiers.json` lists the name of each identifier.

An example is one input with its label; a puzzle is one augmentation, with all its examples; a group is one original
puzzle with all its augmentations. The format is that of Tiny Recursive Models, https://arxiv.org/abs/2510.04871
(puzzle_dataset.py), so that sets made for it load.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Int

from plimsoll.data import read_json
from plimsoll.data.token_table import TokenTable, loaded
from plimsoll.errors import DataError
from plimsoll.types import COUNTED, IGNORED_LABEL

SPLITS = ("train", "test")
INPUTS, LABELS, IDENTIFIERS = "inputs", "labels", "puzzle_identifiers"
"""Names of the arrays of a batch."""
NAMES = "identifiers.json"


@dataclass(frozen=True)
class Sizes:
    """The fields of dataset.json that are used."""

    seq_len: int
    vocab_size: int
    num_puzzle_identifiers: int
    total_groups: int
    pad_id: int
    ignore_label_id: int | None
    blank_identifier_id: int
    sets: list[str]


class PuzzleSet:
    """Split of a data set. Offsets and identifiers stay in memory (`held_bytes`); examples are read on demand."""

    def __init__(self, folder: Path | str, split: Literal["train", "test"]) -> None:
        self.folder, self.split = Path(folder).expanduser(), split
        inside = self.folder / split
        self.sizes = _sizes(inside / "dataset.json")
        self.seq_len = self.sizes.seq_len
        self.vocab_size = self.sizes.vocab_size
        self.identifiers = self.sizes.num_puzzle_identifiers
        """Number of identifiers, with the blank one: rows of an embedding table."""
        name = self.sizes.sets[0]

        # Tokens.
        tokens = {"seq_len": self.seq_len, "vocab_size": self.vocab_size}
        self.inputs = TokenTable(inside / f"{name}__inputs.npy", **tokens)
        self.labels = TokenTable(inside / f"{name}__labels.npy", **tokens)
        self.examples = len(self.inputs)
        _require(len(self.labels) == self.examples, self.labels.path, f"{self.examples:,} rows, as the inputs have,")

        # Puzzles of examples, and groups of puzzles.
        self.puzzle_offsets = _offsets(inside / f"{name}__puzzle_indices.npy", self.examples, "examples")
        """First example of each puzzle, then the number of examples: (puzzles + 1,)."""
        self.puzzles = len(self.puzzle_offsets) - 1
        self.mean_puzzle_examples = self.examples / self.puzzles
        self.group_offsets = _offsets(inside / f"{name}__group_indices.npy", self.puzzles, "puzzles")
        """First puzzle of each group, then the number of puzzles: (groups + 1,)."""
        self.groups = len(self.group_offsets) - 1
        _require(self.groups == self.sizes.total_groups, inside, f"{self.sizes.total_groups:,} groups")

        # Identifiers.
        path = inside / f"{name}__puzzle_identifiers.npy"
        self.puzzle_identifiers = loaded(path)
        is_right = self.puzzle_identifiers.shape == (self.puzzles,)
        is_right = is_right and self.puzzle_identifiers.min() >= 0 and self.puzzle_identifiers.max() < self.identifiers
        _require(is_right, path, f"{self.puzzles:,} identifiers from 0 to {self.identifiers - 1:,}")

    def held_bytes(self) -> int:
        """Returns the bytes that stay in memory while batches are sampled.

        These are the offsets and the identifiers, one epoch's puzzles and the sampling of them (4 bytes a group each).
        """
        offsets = self.puzzle_offsets.nbytes + self.group_offsets.nbytes
        return offsets + self.puzzle_identifiers.nbytes + 2 * 4 * self.groups

    def batch(self, examples: Int[np.ndarray, " batch"]) -> dict[str, np.ndarray]:
        """Returns `inputs` and `labels` (batch, seq_len) and `puzzle_identifiers` (batch,) as int32."""
        labels = self.labels.take(examples)
        if self.sizes.ignore_label_id is not None:
            labels[labels == self.sizes.ignore_label_id] = IGNORED_LABEL
        puzzles = np.searchsorted(self.puzzle_offsets, examples, side="right") - 1
        return {
            INPUTS: self.inputs.take(examples),
            LABELS: labels,
            IDENTIFIERS: self.puzzle_identifiers[puzzles].astype(np.int32),
        }

    def test_batches(self, batch_size: int, *, most: int | None = None) -> Iterator[dict[str, np.ndarray]]:
        """Yields every example once, in order, or the first `most`.

        The last batch is filled up with blanks that `COUNTED` excludes.
        """
        count = self.examples if most is None else min(most, self.examples)
        blank = {INPUTS: self.sizes.pad_id, LABELS: IGNORED_LABEL, IDENTIFIERS: self.sizes.blank_identifier_id}
        for first in range(0, count, batch_size):
            counted = np.arange(batch_size) < count - first
            batch = self.batch(np.arange(first, first + counted.sum()))
            for name, values in batch.items():
                missing = [(0, batch_size - len(values)), *[(0, 0)] * (values.ndim - 1)]
                batch[name] = np.pad(values, missing, constant_values=blank[name])
            yield batch | {COUNTED: counted}

    def check(self) -> None:
        """Reads the whole split, so that a token outside the vocabulary is found before training and not during it."""
        for table in (self.inputs, self.labels):
            for _ in table.slices():
                pass

    def names(self) -> list[str]:
        """Returns the name of each identifier; that of an augmented ARC puzzle describes its augmentation."""
        path = self.folder / NAMES
        names = _json(path)
        _require(len(names) == self.identifiers, path, f"{self.identifiers:,} names")
        return names


def is_puzzle_set(folder: Path | str) -> bool:
    """Returns whether the folder has a data set of puzzles, complete or not."""
    return any((Path(folder).expanduser() / split / "dataset.json").is_file() for split in SPLITS)


def _sizes(path: Path) -> Sizes:
    content = _json(path)
    names = [field.name for field in fields(Sizes)]
    missing = [name for name in names if name not in content]
    if missing:
        raise DataError(f"{path} does not say {', '.join(missing)}: it is no data set of puzzles, or not a whole one")
    return Sizes(**{name: content[name] for name in names})


def _json(path: Path) -> Any:
    absent = (
        f"there is no {path.name} in {path.parent}: no data set of puzzles is there. `plimsoll prepare sudoku --out"
        " FOLDER` makes one (maze and arc likewise)"
    )
    return read_json(path, absent=absent, again="Prepare the data set again")


def _offsets(path: Path, end: int, items: str) -> np.ndarray:
    """Returns the offsets of a file, which must ascend strictly from 0 to `end`."""
    offsets = loaded(path)
    is_right = offsets.ndim == 1 and len(offsets) > 1 and offsets[0] == 0 and offsets[-1] == end
    is_right = is_right and bool((np.diff(offsets) > 0).all())
    _require(is_right, path, f"offsets that ascend from 0 to the {end:,} {items}")
    return offsets.astype(np.int32 if end < 2**31 else np.int64)


def _require(is_right: bool, path: Path, expected: str) -> None:
    """Raises DataError where a file does not fit the others."""
    if not is_right:
        raise DataError(
            f"{path} does not fit the files beside it: {expected} were expected. Prepare the data set again"
        )
