"""Samples training batches: per epoch one random puzzle of every group, with its examples in random order.

An iteration is `epochs_per_iteration` epochs. A batch takes puzzle after puzzle until it is full. Examples of its last
puzzle that do not fit are left out. The incomplete batch at the end of an iteration is dropped.

The published sampler works the same way (Tiny Recursive Models, puzzle_dataset.py), with two differences: its choice of
examples within a puzzle does not depend on the seed, and it draws all orders of an iteration in advance. Here each
epoch and each batch has its own generator. So the position in the data is iteration, batch and group, and only one
epoch's order is in memory.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int

from plimsoll.data.loader import Stream
from plimsoll.errors import RecipeError
from plimsoll.recipes.puzzles.dataset import PuzzleSet

_EPOCH, _BATCH = 11, 12
"""Constants in the seeds of the random generators of epochs and of batches."""


class PuzzleDraws(Stream):
    """Endless stream of training batches."""

    start: ClassVar = {"iteration": 0, "batch": 0, "group": 0}

    def __init__(self, puzzles: PuzzleSet, *, batch_size: int, seed: int, epochs_per_iteration: int) -> None:
        super().__init__(facts={"puzzles": puzzles.puzzles, "examples": puzzles.examples})
        self.set = puzzles
        self.batch_size = batch_size
        self.order_seed = seed
        self.epochs = epochs_per_iteration

    def epoch(self, iteration: int, epoch: int) -> Int[np.ndarray, " groups"]:
        """Returns the index of one random puzzle of every group, in random order."""
        random = np.random.default_rng([self.order_seed, _EPOCH, iteration, epoch])
        groups = random.permutation(np.arange(self.set.groups, dtype=np.int32))
        return random.integers(self.set.group_offsets[groups], self.set.group_offsets[groups + 1], dtype=np.int32)

    def examples_of(self, puzzles: Int[np.ndarray, " chosen"], iteration: int, batch: int) -> Int[np.ndarray, " batch"]:
        """Returns the indices of a batch's examples: puzzle by puzzle, in random order within each."""
        first = self.set.puzzle_offsets[puzzles].astype(np.int64)
        sizes = self.set.puzzle_offsets[puzzles + 1] - first
        ends = np.cumsum(sizes)
        examples = np.repeat(first - (ends - sizes), sizes) + np.arange(ends[-1])
        random = np.random.default_rng([self.order_seed, _BATCH, iteration, batch])
        owners = np.repeat(np.arange(len(puzzles)), sizes)
        return examples[np.lexsort((random.random(len(examples)), owners))][: self.batch_size]

    def walk(self, at: dict[str, Any]) -> Iterator[dict[str, np.ndarray]]:
        known, order = None, np.empty(0, np.int32)
        while True:
            room, group, chosen = self.batch_size, at["group"], []
            while room > 0 and group < self.epochs * self.set.groups:
                epoch, first = divmod(group, self.set.groups)
                if known != (at["iteration"], epoch):
                    known = at["iteration"], epoch
                    order = self.epoch(*known)
                puzzles = order[first : first + room]
                filled = np.cumsum(self.set.puzzle_offsets[puzzles + 1] - self.set.puzzle_offsets[puzzles])
                count = min(len(puzzles), int(np.searchsorted(filled, room)) + 1)
                chosen.append(puzzles[:count])
                room, group = room - int(filled[count - 1]), group + count
            if room > 0:  # the iteration has too few examples left to fill a batch
                if not at["group"]:
                    raise RecipeError(
                        f"--batch-size {self.batch_size:,} is more than --eval-interval {self.epochs:,} epochs of"
                        f" {self.set.groups:,} groups fill, and an incomplete batch is dropped: take a smaller"
                        " batch, or evaluate less often"
                    )
                at |= {"iteration": at["iteration"] + 1, "batch": 0, "group": 0}
                continue
            examples = self.examples_of(np.concatenate(chosen), at["iteration"], at["batch"])
            at["batch"], at["group"] = at["batch"] + 1, group
            yield self.set.batch(examples)
