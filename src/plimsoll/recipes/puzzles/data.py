"""Training data from a folder of puzzles in the format of Tiny Recursive Models (dataset.py)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from plimsoll.errors import DataError
from plimsoll.files.facts import Facts, facts_of
from plimsoll.options import FolderPath, NonNegativeCount, PositiveCount, PositiveInt
from plimsoll.recipes.parts import Batch, Data, HostMemory, Needs, Prepared, Reading, Say
from plimsoll.recipes.specs import PuzzleSpec
from plimsoll.types import Source
from plimsoll.units import MIB

if TYPE_CHECKING:
    from plimsoll.recipes.puzzles.dataset import PuzzleSet

READER_BYTES = 4 * MIB
"""Host memory of NumPy's reader, its generators and small arrays, in bytes."""


@dataclass(frozen=True, kw_only=True)
class PuzzleFolder(Data):
    """Puzzles in groups: an epoch has one random puzzle of each group."""

    name = "puzzles"
    gives = PuzzleSpec
    no_validation = "it was trained with --validation-examples 0. Train with more"

    data: FolderPath = ""
    """Folder with puzzles: one that `plimsoll prepare sudoku`, `maze` or `arc` writes, or another in the format of Tiny
    Recursive Models. Planning needs none."""
    seq_len: PositiveInt = 81
    """Tokens of a puzzle in the data set."""
    vocab_size: PositiveCount = 11
    """Number of different tokens in the data set."""
    identifiers: PositiveCount = 1
    """Most puzzle identifiers in the data set. A data set with fewer has a smaller table of puzzle embeddings."""
    validation_examples: NonNegativeCount | None = None
    """Examples of the test split to evaluate on while training, from its beginning. By default all."""
    eval_interval: PositiveCount = 5_000
    """Epochs between evaluations."""

    @property
    def missing(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        from plimsoll.recipes.puzzles.text import form_of
        from plimsoll.recipes.registered import BUILT_IN

        form = form_of(seq_len=self.seq_len, vocab_size=self.vocab_size)
        made = BUILT_IN.prepares["sudoku" if form is None else form.kind]
        return f"name a folder of puzzles, like that which `{made.example}` makes"

    @cached_property
    def training_set(self) -> PuzzleSet:
        return self._opened("train")

    @property
    def test_set(self) -> PuzzleSet:
        return self._opened("test")

    @property
    def arc_tasks(self) -> Path:
        """Path of the published tasks in an ARC data set. Other data sets have no such file."""
        return Path(self.data) / "test_puzzles.json"

    def _opened(self, split: Literal["train", "test"]) -> PuzzleSet:
        """Returns a split of --data. Raises DataError if it does not fit the options."""
        from plimsoll.recipes.puzzles.dataset import PuzzleSet

        puzzles = PuzzleSet(self.data, split)
        is_same = (puzzles.seq_len, puzzles.vocab_size) == (self.seq_len, self.vocab_size)
        if not is_same or puzzles.identifiers > self.identifiers:
            raise DataError(
                f"{puzzles.folder / split} has puzzles of --seq-len {puzzles.seq_len} --vocab-size"
                f" {puzzles.vocab_size} --identifiers {puzzles.identifiers}, and the recipe has {self.seq_len},"
                f" {self.vocab_size} and {self.identifiers} at most. Take the preset of these puzzles (`plimsoll"
                " recipes`), or give those options"
            )
        return puzzles

    def facts(self) -> Facts:
        return facts_of(sorted(Path(self.data).expanduser().glob("*/*.npy")))

    def spec(self, needs: Needs) -> PuzzleSpec:
        tokens = (self.seq_len,), "int32"
        return PuzzleSpec(
            arrays={"inputs": tokens, "labels": tokens, "puzzle_identifiers": ((), "int32")},
            filled=True,
            vocab=self.vocab_size,
            length=self.seq_len,
            identifiers=self.training_set.identifiers if self.data else self.identifiers,
        )

    def memory(self, prepared: Prepared | None, reading: Reading, *, prefetch: int) -> HostMemory:
        """Returns the host memory of reader, data set and batches; without --data, of reader and batches."""
        held = self.training_set.held_bytes() if self.data else 0
        return HostMemory(bytes=READER_BYTES + held + self.in_flight(reading, prefetch))

    def with_vocabulary_of(self, run: Path, prepared: Prepared) -> PuzzleFolder:
        rows = self.training_set.identifiers
        if rows > 1:
            raise DataError(
                f"{self.data} has {rows:,} puzzle identifiers, and the embeddings that {run} has learned belong to"
                " those of its own data: start a new --run"
            )
        return self

    def prepare(self, reading: Reading, say: Say) -> Prepared:
        # All of the data is read, so that damage is found now and not during training.
        training = self.training_set
        test = self.test_set
        training.check()
        test.check()

        # Length.
        batch, length = reading.batch_size, reading.length
        steps = length.steps or self._batches_of(length.epochs_of(self.data), batch)
        if steps < 1:
            raise DataError(
                f"{self.data} has {training.groups:,} groups of puzzles, and --epochs of one puzzle each do not"
                f" fill a batch of {batch:,}: give --steps, more --epochs, or a lower --batch-size"
            )

        # Facts.
        description = (
            f"{training.puzzles:,} puzzles in {training.groups:,} groups, {training.examples:,} examples in"
            f" {self.data}; {test.examples:,} test examples"
        )
        facts = {"description": description, "groups": training.groups, "test_examples": test.examples}
        return Prepared(
            steps=steps,
            steps_per_epoch=training.groups * training.mean_puzzle_examples / batch,
            evaluate_every=max(1, self._batches_of(self.eval_interval, batch)),
            facts=facts,
        )

    def _batches_of(self, epochs: float, batch: int) -> int:
        """Returns the number of batches in `epochs`: exact if all puzzles have equally many examples, else its
        expectation.

        For a complete run it is the published number of steps: 65,104 for 50,000 epochs of 1,000 groups in batches of
        768.
        """
        training = self.training_set
        return int(epochs * training.groups * training.mean_puzzle_examples / batch)

    def source(self, reading: Reading, *, prefetch: int) -> Source:
        from plimsoll.data.loader import Loader
        from plimsoll.recipes.puzzles.sampler import PuzzleDraws

        draws = PuzzleDraws(
            self.training_set,
            batch_size=reading.batch_size,
            seed=reading.seed,
            epochs_per_iteration=self.eval_interval,
        )
        return Loader(draws, prefetch=prefetch)

    def validation(self, reading: Reading, *, examples: int) -> Iterable[Batch]:
        return self.test_set.test_batches(examples, most=self.validation_examples)
