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

_COUNTS = ("seq_len", "vocab_size", "num_puzzle_identifiers", "total_groups")


class PuzzleSet:
    """Split of a data set. Offsets and identifiers stay in memory (`held_bytes`); examples are read on demand."""

    def __init__(self, folder: Path | str, split: Literal["train", "test"]) -> None:
        self.folder, self.split = Path(folder).expanduser(), split
        about = _about(self.folder, split)
        self.seq_len: int = about["seq_len"]
        self.vocab_size: int = about["vocab_size"]
        self.identifiers: int = about["num_puzzle_identifiers"]
        """Number of identifiers, with the blank one: rows of an embedding table."""
        self.pad_id: int = about["pad_id"]
        self.ignore_label_id: int | None = about["ignore_label_id"]
        """Label that is not counted; None if all are."""
        self.blank_identifier_id: int = about["blank_identifier_id"]
        name = about["sets"][0]
        inside = self.folder / split
        sizes = {"seq_len": self.seq_len, "vocab_size": self.vocab_size}
        self.inputs = TokenTable(inside / f"{name}__inputs.npy", **sizes)
        self.labels = TokenTable(inside / f"{name}__labels.npy", **sizes)
        _require_length(self.labels.path, len(self.labels), len(self.inputs), "rows, as the inputs have")
        self.examples = len(self.inputs)
        self.puzzle_offsets = _offsets(inside / f"{name}__puzzle_indices.npy", self.examples, "examples")
        """First example of each puzzle, then the number of examples: (puzzles + 1,)."""
        self.puzzles = len(self.puzzle_offsets) - 1
        self.mean_puzzle_examples = self.examples / self.puzzles
        self.group_offsets = _offsets(inside / f"{name}__group_indices.npy", self.puzzles, "puzzles")
        """First puzzle of each group, then the number of puzzles: (groups + 1,)."""
        self.groups = len(self.group_offsets) - 1
        self.puzzle_identifiers = self._identifiers(inside / f"{name}__puzzle_identifiers.npy")
        for count, held in (("total_groups", self.groups), ("total_puzzles", self.puzzles)):
            if about.get(count, held) != held:
                raise DataError(
                    f"{inside / 'dataset.json'} says {about[count]:,} ({count}), and the arrays beside it have"
                    f" {held:,}: prepare it again"
                )

    def held_bytes(self) -> int:
        """Returns the bytes that stay in memory while batches are sampled.

        These are the offsets and the identifiers, one epoch's puzzles and the sampling of them (4 bytes a group each).
        """
        offsets = self.puzzle_offsets.nbytes + self.group_offsets.nbytes
        return offsets + self.puzzle_identifiers.nbytes + 2 * 4 * self.groups

    def batch(self, examples: Int[np.ndarray, " batch"]) -> dict[str, np.ndarray]:
        """Returns `inputs` and `labels` (batch, seq_len) and `puzzle_identifiers` (batch,) as int32."""
        labels = self.labels.take(examples)
        if self.ignore_label_id is not None:
            labels[labels == self.ignore_label_id] = IGNORED_LABEL
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
        blank = {INPUTS: self.pad_id, LABELS: IGNORED_LABEL, IDENTIFIERS: self.blank_identifier_id}
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
        names = _json(self.folder / NAMES)
        if not isinstance(names, list) or len(names) != self.identifiers:
            count = len(names) if isinstance(names, list) else "no list of"
            raise DataError(
                f"{self.folder / NAMES} has {count} names, and dataset.json says {self.identifiers:,}"
                " (num_puzzle_identifiers): prepare the data set again"
            )
        return names

    def _identifiers(self, path: Path) -> np.ndarray:
        identifiers = loaded(path)
        if identifiers.ndim != 1:
            raise DataError(f"{path} has the shape {identifiers.shape}: one identifier for each puzzle was expected")
        _require_length(path, len(identifiers), self.puzzles, "identifiers, one for each puzzle")
        wrong = np.flatnonzero((identifiers < 0) | (identifiers >= self.identifiers))
        if len(wrong):
            raise DataError(
                f"{path}: puzzle {wrong[0]:,} has the identifier {identifiers[wrong[0]]:,}, and dataset.json says there"
                f" are {self.identifiers:,} (0 to {self.identifiers - 1:,}). Prepare the data set again"
            )
        return identifiers


def is_puzzle_set(folder: Path | str) -> bool:
    """Returns whether the folder has a data set of puzzles, complete or not."""
    return any((Path(folder).expanduser() / split / "dataset.json").is_file() for split in SPLITS)


def _about(folder: Path, split: str) -> dict[str, Any]:
    """Returns the content of dataset.json, after checking every field that is used."""
    path = folder / split / "dataset.json"
    about = _json(path)
    needed = (*_COUNTS, "pad_id", "ignore_label_id", "blank_identifier_id", "sets")
    missing = [name for name in needed if name not in about] if isinstance(about, dict) else list(needed)
    if missing:
        raise DataError(f"{path} does not say {', '.join(missing)}: it is no data set of puzzles, or not a whole one")
    for name in needed[:-1]:
        value = about[name]
        least = 1 if name in _COUNTS else 0
        if not (isinstance(value, int) and value >= least) and not (name == "ignore_label_id" and value is None):
            raise DataError(f"{path}: {name} must be a whole number, {least} or more, got {value!r}")
    sets = about["sets"]
    if not isinstance(sets, list) or len(sets) != 1 or not isinstance(sets[0], str) or Path(sets[0]).name != sets[0]:
        raise DataError(f'{path}: sets must name one set of arrays, like ["all"], got {about["sets"]!r}')
    return about


def _json(path: Path) -> Any:
    absent = (
        f"there is no {path.name} in {path.parent}: no data set of puzzles is there. `plimsoll prepare sudoku --out"
        " FOLDER` makes one (maze and arc likewise)"
    )
    return read_json(path, absent=absent, again="Prepare the data set again")


def _offsets(path: Path, end: int, what: str) -> np.ndarray:
    """Returns the offsets of a file, which must ascend strictly from 0 to `end`."""
    offsets = loaded(path)
    if offsets.ndim != 1 or len(offsets) < 2:
        raise DataError(f"{path} has the shape {offsets.shape}: at least two offsets, 0 first, were expected")
    falls = np.flatnonzero(offsets[1:] <= offsets[:-1])
    if len(falls):
        at = int(falls[0])
        raise DataError(
            f"{path}: offset {at + 1:,} is {offsets[at + 1]:,}, and the one before it {offsets[at]:,}: they must"
            f" ascend, since each is the first of its {what}. Prepare the data set again"
        )
    if offsets[0] != 0 or offsets[-1] != end:
        raise DataError(
            f"{path} goes from {offsets[0]:,} to {offsets[-1]:,}, and there are {end:,} {what}: it must go from 0 to"
            " that. Prepare the data set again"
        )
    return offsets.astype(np.int32 if end < 2**31 else np.int64)


def _require_length(path: Path, length: int, expected: int, what: str) -> None:
    if length != expected:
        raise DataError(f"{path} has {length:,}, and {expected:,} {what}, were expected: prepare the data set again")
