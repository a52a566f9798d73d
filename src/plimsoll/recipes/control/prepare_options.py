"""Options that determine a set of control windows: sizes, seed, and the variant of each row.

Imports neither JAX nor h5py: the command line takes its options from here.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from plimsoll.errors import RecipeError
from plimsoll.options import (
    FilePath,
    NonNegativeFloat,
    Options,
    PositiveCount,
    PositiveFloat,
    PositiveInt,
    Seed,
    Share,
)
from plimsoll.recipes.control.systems import FAMILIES

ROW_BYTES = {"lzf": 800, "gzip": 760, "none": 2600}
"""Maximum bytes on disk per row, by compression, for windows of 32 states (notes, "Windows of control")."""
MOST_VARIANTS, MOST_TOGETHER = 50, 4


class Block(NamedTuple):
    """Trajectories that are simulated together: one of each family for each of `variants`."""

    number: int
    variants: tuple[int, ...]
    first: int
    """Index of the block's first row in the file; `end` follows its last row."""
    end: int


@dataclass(frozen=True, kw_only=True)
class ControlSet(Options):
    """Options that determine the content of the HDF5 file."""

    samples: PositiveCount = 1_000_000
    """Windows to make, like 1M or 100M."""
    seed: Seed = 42
    """Seed of the systems' variants, the starts and the noise."""
    window: PositiveInt = 32
    """Number of states of a window."""
    stride: PositiveInt = 21
    """Steps from one window of a trajectory to the next."""
    uncertainty: Share = 0.2
    """Largest deviation of a variant's parameters, as a share of the nominal values."""
    noise: NonNegativeFloat = 0.01
    """Standard deviation of the noise that is added to every state after a step."""
    horizon: PositiveFloat = 50.0
    """Seconds of a trajectory."""
    dt: PositiveFloat = 0.02
    """Seconds of a step."""
    variants: PositiveInt | None = None
    """Variants of each system. By default 50, fewer for a small set."""
    held_out: Share = 0.15
    """Share of the variants that are for validation: the last rows of the file."""
    chunk_rows: PositiveInt = 512
    """Rows of a chunk of the file."""
    compression: Literal["lzf", "gzip", "none"] = "lzf"
    """Compression of the chunks."""

    def check_options(self) -> None:
        if not self.windows_each:
            raise RecipeError(
                f"a trajectory of {self.length:,} steps ({self.horizon:g} s of {self.dt:g} s) has no window of"
                f" {self.window}: choose a shorter --window or a longer --horizon"
            )
        least = (self.variants_used - 1) * self.rows_per_variant
        if self.variants and self.samples <= least:
            raise RecipeError(
                f"--variants {self.variants} do not all fit in {self.samples:,} windows: a trajectory of every"
                f" system gives {self.rows_per_variant:,}. Ask for more than {least:,} --samples, or fewer variants"
            )

    @property
    def length(self) -> int:
        """Number of states of a trajectory, with the initial state."""
        return round(self.horizon / self.dt)

    @property
    def windows_each(self) -> int:
        """Number of windows of a trajectory: they start at 0, stride, 2 stride, ... below length - window."""
        return len(range(0, self.length - self.window, self.stride))

    @property
    def rows_per_variant(self) -> int:
        """Total number of windows of one trajectory of each family."""
        return len(FAMILIES) * self.windows_each

    @property
    def variants_used(self) -> int:
        """Number of variants of each system, fewer for a small data set. Each is simulated at least once."""
        return self.variants or min(MOST_VARIANTS, max(2, round(self.samples / self.rows_per_variant)))

    @property
    def held_out_variants(self) -> int:
        """Number of held-out variants of each system, for validation."""
        if self.variants_used < 2 or not self.held_out or self.samples < self.variants_used:
            return 0
        return min(self.variants_used - 1, max(1, round(self.held_out * self.variants_used)))

    @property
    def train_rows(self) -> int:
        """Number of training rows; with held-out variants, rounded down to complete chunks if there are two or more."""
        if not self.held_out_variants:
            return self.samples
        rows = self.samples * (self.variants_used - self.held_out_variants) // self.variants_used
        return rows if rows < 2 * self.chunk_rows else rows // self.chunk_rows * self.chunk_rows

    @cached_property
    def together(self) -> int:
        """Number of trajectories of each family in a block."""
        return max(1, min(MOST_TOGETHER, self.samples // self.rows_per_variant))

    def blocks(self) -> Iterator[Block]:
        """Yields the blocks of the training variants in turn, then those of the held-out variants."""
        training, row, number = self.variants_used - self.held_out_variants, 0, 0
        for variants, end in ((range(training), self.train_rows), (range(training, self.variants_used), self.samples)):
            turn = itertools.cycle(variants)
            while row < end:
                stop = min(end, row + self.together * self.rows_per_variant)
                yield Block(number, tuple(itertools.islice(turn, self.together)), row, stop)
                row, number = stop, number + 1


@dataclass(frozen=True, kw_only=True)
class ControlOptions(ControlSet):
    """Options of `plimsoll prepare control`."""

    out: FilePath = "windows.h5"
    """The HDF5 file."""
