"""Data sets of puzzles in the on-disk format of Tiny Recursive Models.

`FOLDER/{train,test}/dataset.json` has the sizes. `all__inputs.npy` and `all__labels.npy` hold a row of tokens per
example. `all__puzzle_identifiers.npy` holds a number per puzzle. `all__puzzle_indices.npy` holds the index of each
puzzle's first example and, at the end, the number of examples; `all__group_indices.npy` likewise the first puzzle of
each group. `FOLDER/identifiers.json` lists the name of each identifier.

An example is one input with its label; a puzzle is one augmentation, with all its examples; a group is one original
puzzle with all its augmentations. Data sets made for the published code load, too: https://arxiv.org/abs/2510.04871
(puzzle_dataset.py).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Int

from plimsoll.data import read_json
from plimsoll.data.examples import filled_up
from plimsoll.data.token_table import TokenTable, loaded
from plimsoll.errors import DataError
from plimsoll.types import IGNORED_LABEL

SPLITS = ("train", "test")
INPUTS, LABELS, IDENTIFIERS = "inputs", "labels", "puzzle_identifiers"
"""Names of the arrays of a batch."""
NAMES = "identifiers.json"
PADDING = 0
"""Token of padding, which is ignored as a label."""


class PuzzleSet:
    """One split of a data set. Offsets and identifiers stay in memory (`held_bytes`); examples are read on demand."""

    def __init__(self, folder: Path | str, split: Literal["train", "test"]) -> None:
        self.folder = Path(folder).expanduser()
        self.split = split
        inside = self.folder / split

        # Sizes.
        sizes_path = inside / "dataset.json"
        sizes = _json(sizes_path)
        try:
            self.seq_len = int(sizes["seq_len"])
            self.vocab_size = int(sizes["vocab_size"])
            self.identifiers = int(sizes["num_puzzle_identifiers"])
            """Number of puzzle identifiers, including the blank one: rows of the table of puzzle embeddings."""
        except (LookupError, TypeError, ValueError) as problem:
            raise DataError(
                f"{sizes_path} does not describe a data set of puzzles ({problem!r}): prepare the data set again"
            ) from None

        # Tokens.
        tokens = {"seq_len": self.seq_len, "vocab_size": self.vocab_size}
        self.inputs = TokenTable(inside / f"all__{INPUTS}.npy", **tokens)
        self.labels = TokenTable(inside / f"all__{LABELS}.npy", **tokens)
        self.examples = len(self.inputs)

        # Boundaries of puzzles and of groups.
        self.puzzle_offsets = loaded(inside / "all__puzzle_indices.npy").astype(np.int32)
        """Index of each puzzle's first example, then the number of examples: (puzzles + 1,)."""
        self.puzzles = len(self.puzzle_offsets) - 1
        self.mean_puzzle_examples = self.examples / self.puzzles
        self.group_offsets = loaded(inside / "all__group_indices.npy").astype(np.int32)
        """Index of each group's first puzzle, then the number of puzzles: (groups + 1,)."""
        self.groups = len(self.group_offsets) - 1
        self.puzzle_identifiers = loaded(inside / f"all__{IDENTIFIERS}.npy")

    def held_bytes(self) -> int:
        """Returns the bytes that stay in memory while batches are sampled.

        These are the offsets and identifiers, and for each group 4 bytes of the epoch's chosen puzzle and 4 bytes of
        its random draw.
        """
        offsets = self.puzzle_offsets.nbytes + self.group_offsets.nbytes
        return offsets + self.puzzle_identifiers.nbytes + 2 * 4 * self.groups

    def batch(self, examples: Int[np.ndarray, " batch"]) -> dict[str, np.ndarray]:
        """Returns `inputs` and `labels` (batch, seq_len) and `puzzle_identifiers` (batch,) as int32."""
        labels = self.labels.take(examples)
        labels[labels == PADDING] = IGNORED_LABEL
        puzzles = np.searchsorted(self.puzzle_offsets, examples, side="right") - 1
        return {
            INPUTS: self.inputs.take(examples),
            LABELS: labels,
            IDENTIFIERS: self.puzzle_identifiers[puzzles].astype(np.int32),
        }

    def test_batches(self, batch_size: int, *, most: int | None = None) -> Iterator[dict[str, np.ndarray]]:
        """Yields batches of all examples in order, or of the first `most`.

        Copies that fill up the last batch are not counted (`types.COUNTED`).
        """
        end = self.examples if most is None else min(most, self.examples)
        for first in range(0, end, batch_size):
            examples = np.arange(first, min(first + batch_size, end))
            yield filled_up(self.batch(examples), len(examples), batch_size)

    def check(self) -> None:
        """Reads the whole split, so that a token outside the vocabulary is found before training and not during it."""
        for table in (self.inputs, self.labels):
            for _ in table.slices():
                pass

    def names(self) -> list[str]:
        """Returns the name of each identifier. The name of an augmented ARC puzzle encodes the augmentation."""
        return _json(self.folder / NAMES)


def is_puzzle_set(folder: Path | str) -> bool:
    """Returns True if the folder has a data set of puzzles, complete or not."""
    return (Path(folder).expanduser() / "train/dataset.json").is_file()


def _json(path: Path) -> Any:
    absent = (
        f"there is no {path.name} in {path.parent}: it holds no data set of puzzles. `plimsoll prepare` makes one of"
        " sudoku, maze or arc"
    )
    return read_json(path, absent=absent, again="Prepare the data set again")
