"""Options of `plimsoll prepare sudoku`, `maze` and `arc`.

Imports no NumPy: the command line takes its options from here.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from plimsoll.options import FolderPath, Ge, NonNegativeCount, NonNegativeInt, Options, PositiveCount

ALL_4X4, HELD_OUT_4X4 = 288, 48
"""Number of complete grids of side 4, and how many of these are held out for testing by default."""


@dataclass(frozen=True, kw_only=True)
class SudokuOptions(Options):
    """Options for Sudoku. A group is a training puzzle with its augmentations, or the generated puzzles of one grid of
    side 4."""

    source: str | None = None
    """A CSV file with the columns question and answer, a folder with such a train.csv and test.csv, or a Hugging Face
    id like sapientinc/sudoku-extreme. Without it puzzles are generated."""
    size: Literal[4, 6, 9] = 9
    """Rows of a puzzle."""
    difficulty: Literal["easy", "mixed"] = "mixed"
    """Difficulty of generated puzzles. easy: half the cells given, no guess needed; mixed: a quarter or more given, and
    one solution."""
    subsample_size: PositiveCount | None = None
    """Puzzles (with --size 4: grids) to train on, chosen at random. By default 1,000, or all if there are fewer."""
    num_aug: NonNegativeCount = 1000
    """Augmentations of each puzzle; with --size 4: further puzzles of the same grid."""
    test_size: PositiveCount | None = None
    """Puzzles to test on; solution grids, if the source has no test split. By default the source's test split, else a
    tenth of the source and at most 1,000. Of generated puzzles 1,000; with --size 4, 48 of the 288 grids."""
    seed: NonNegativeInt = 42
    """Seed of all random choices."""
    out: FolderPath
    """New folder for the data set."""

    @property
    def is_all_of_4x4(self) -> bool:
        """True if puzzles are made of the 288 grids of side 4."""
        return self.size == 4 and self.source is None

    @property
    def train_size(self) -> int:
        """Maximum number of groups to train on."""
        if self.subsample_size is not None:
            return self.subsample_size
        return ALL_4X4 - self.held_out_grids if self.is_all_of_4x4 else 1000

    @property
    def held_out_grids(self) -> int:
        """Number of generated grids to test on. With side 6 and 9, each gives one puzzle."""
        if self.test_size is not None:
            return self.test_size
        return HELD_OUT_4X4 if self.is_all_of_4x4 else 1000


@dataclass(frozen=True, kw_only=True)
class MazeOptions(Options):
    """Options for mazes. A group is one maze, or with `--aug` its eight symmetries."""

    source: str
    """A CSV file with the columns question and answer (characters "# SGo"), a folder with such a train.csv and
    test.csv, or a Hugging Face id like sapientinc/maze-30x30-hard-1k."""
    size: Annotated[int, Ge(2)] = 30
    """Rows of a maze."""
    subsample_size: PositiveCount = 1000
    """Mazes to train on, or all if the source has fewer."""
    test_size: PositiveCount | None = None
    """Mazes to test on. By default the source's test split, else a tenth of the source and at most 1,000."""
    aug: bool = False
    """Train on the eight symmetries of each maze."""
    seed: NonNegativeInt = 42
    """Seed of all random choices."""
    out: FolderPath
    """New folder for the data set."""


@dataclass(frozen=True, kw_only=True)
class ArcOptions(Options):
    """Options for ARC. A group is one task with its augmentations."""

    source: str
    """A folder with ARC tasks: NAME_challenges.json with NAME_solutions.json (the Kaggle form), folders of one JSON
    file for each task, or such files themselves."""
    subsets: tuple[str, ...] = ()
    """Names of the subsets to use, like training evaluation concept. By default all."""
    test_set_name: str | None = None
    """Name of the subset whose test pairs are the test split. By default evaluation2, else evaluation, else the last
    subset."""
    num_aug: NonNegativeCount = 1000
    """Augmentations of each task, at most."""
    seed: NonNegativeInt = 42
    """Seed of all random choices."""
    out: FolderPath
    """New folder for the data set."""
