"""Puzzles in a folder of the published format, as data of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from plimsoll.errors import DataError, RecipeError
from plimsoll.files.facts import Facts, facts_of, require_same
from plimsoll.options import FolderPath, NonNegativeCount, PositiveCount, PositiveInt
from plimsoll.recipes.parts import Batch, Data, HostMemory, Needs, Prepared, Reading, Say
from plimsoll.recipes.specs import PuzzleSpec
from plimsoll.types import Source
from plimsoll.units import MIB

if TYPE_CHECKING:
    from plimsoll.recipes.puzzles.dataset import PuzzleSet

READER_BYTES = 4 * MIB
"""NumPy's reader and its generators, and what small arrays leave in the heap."""
BATCHES = 3
"""Besides those made ahead: one in the making, one taken, and the step's own copy of it."""


@dataclass(frozen=True, kw_only=True)
class PuzzleFolder(Data):
    """Puzzles in groups: of each group one random puzzle an epoch."""

    name = "puzzles"
    gives = PuzzleSpec
    no_validation = "it was trained with --validation-examples 0. Train with more"

    data: FolderPath = ""
    """Folder with puzzles: what `plimsoll prepare sudoku`, `maze` or `arc` writes, or another in the published format.
    Planning needs none."""
    seq_len: PositiveInt = 81
    """Tokens of a puzzle, as the data set has them."""
    vocab_size: PositiveCount = 11
    """Different tokens, as the data set has them."""
    identifiers: PositiveCount = 1
    """Most rows of the table of puzzle embeddings. A data set with fewer puzzle identifiers has a smaller table."""
    validation_examples: NonNegativeCount | None = None
    """Examples of the test split to evaluate on while training, from its beginning. By default all."""
    eval_interval: PositiveCount = 5_000
    """Epochs between evaluations."""

    @cached_property
    def training_set(self) -> PuzzleSet:
        return self._opened("train")

    @property
    def test_set(self) -> PuzzleSet:
        return self._opened("test")

    @property
    def arc_tasks(self) -> Path:
        """Tasks of a data set of ARC, as they were published; other data sets have no such file beside their splits."""
        return Path(self.data) / "test_puzzles.json"

    def _opened(self, split: Literal["train", "test"]) -> PuzzleSet:
        """Returns a split of --data; one that does not fit the options is refused."""
        from plimsoll.recipes.puzzles.dataset import PuzzleSet
        from plimsoll.recipes.puzzles.family import FAMILY
        from plimsoll.recipes.puzzles.text import form_of

        if not self.data:
            form = form_of(seq_len=self.seq_len, vocab_size=self.vocab_size)
            made = FAMILY.prepares["sudoku" if form is None else form.kind]
            raise RecipeError(f"--data is missing: name a folder of puzzles, like that which `{made.example}` makes")
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
        """Returns what distinguishes one data set from another."""
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
        """Returns the bytes of the source; without data, those of batches alone."""
        batch = 4 * reading.batch_size * (2 * self.seq_len + 1)
        held = self.training_set.held_bytes() if self.data else 0
        return HostMemory(bytes=READER_BYTES + held + (prefetch + BATCHES) * batch)

    def open(self, folder: Path, reading: Reading) -> PuzzleDataset:
        return PuzzleDataset(self, reading)


@dataclass(frozen=True)
class PuzzleDataset:
    """The puzzles of one run."""

    data: PuzzleFolder
    reading: Reading

    def prepare(self, say: Say) -> Prepared:
        # All of the data is read, so that what is damaged is found now and not during training.
        training = self.data.training_set
        test = self.data.test_set
        training.check()
        test.check()

        # Length.
        batch, length = self.reading.batch_size, self.reading.length
        steps = length.steps or self._batches_of(length.epochs_of(self.data.data))
        if steps < 1:
            raise DataError(
                f"{self.data.data} has {training.groups:,} groups of puzzles, and --epochs of one puzzle each do not"
                f" fill a batch of {batch:,}: give --steps, more --epochs, or a lower --batch-size"
            )

        # Facts.
        description = f"{training.puzzles:,} puzzles in {training.groups:,} groups, {training.examples:,} examples"
        say(f"data: {description} in {self.data.data}; {test.examples:,} test examples; {steps:,} steps")
        facts = {
            "description": description,
            "groups": training.groups,
            "test_examples": test.examples,
            "arrays": self.data.facts().to_json(),
        }
        return Prepared(
            steps=steps,
            steps_per_epoch=training.groups * training.mean_puzzle_examples / batch,
            evaluate_every=max(1, self._batches_of(self.data.eval_interval)),
            facts=facts,
        )

    def _batches_of(self, epochs: float) -> int:
        """Returns the batches of so many epochs: exact if all puzzles have as many examples, else the expected number.

        For the epochs of a whole run it is the published number of steps: 65,104 for 50,000 epochs of 1,000 groups in
        batches of 768.
        """
        training = self.data.training_set
        return int(epochs * training.groups * training.mean_puzzle_examples / self.reading.batch_size)

    def require_same(self, prepared: Prepared, *, training: bool) -> None:
        require_same(self.data.data, prepared.facts["arrays"], self.data.facts())

    def source(self, *, prefetch: int) -> Source:
        from plimsoll.recipes.puzzles.sampler import PuzzleLoader

        return PuzzleLoader(
            self.data.training_set,
            batch_size=self.reading.batch_size,
            seed=self.reading.seed,
            epochs_per_iteration=self.data.eval_interval,
            prefetch=prefetch,
        )

    def validation(self, *, examples: int) -> Iterable[Batch]:
        return self.data.test_set.test_batches(examples, most=self.data.validation_examples)
