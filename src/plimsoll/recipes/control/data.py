"""Training data from an HDF5 file: windows of states and controls.

Validation is by held-out variants of the systems.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from plimsoll.files.facts import Facts, facts_of
from plimsoll.options import FilePath, NonNegativeCount, PositiveInt
from plimsoll.recipes.parts import Batch, Data, HostMemory, Needs, Prepared, Reading, Say
from plimsoll.recipes.specs import WindowSpec
from plimsoll.types import Source
from plimsoll.units import MIB

if TYPE_CHECKING:
    from plimsoll.recipes.control.rows import ControlRows

READER_BYTES = 6 * MIB
"""Host memory of the HDF5 library, its cache, and heap that freed chunks and small arrays leave (notes, "The reader's
share")."""


@dataclass(frozen=True, kw_only=True)
class Windows(Data):
    """Windows of states of several systems, each with the control that follows."""

    name = "windows"
    gives = WindowSpec
    spec_in_data = True
    missing = "name the HDF5 file of windows. `plimsoll prepare control --samples 1M --out windows.h5` makes one"
    no_validation = "it was trained with --split none. Train with --split variant"

    data: FilePath = ""
    """HDF5 file with control windows: one that `plimsoll prepare control` writes, or another with the same datasets."""
    split: Literal["variant", "none"] = "variant"
    """Part that is held out for validation: variants of the systems, or none."""
    validation_rows: NonNegativeCount = 20_000
    """Most held-out windows to evaluate on, taken evenly from the held-out part."""
    mix_chunks: PositiveInt = 16
    """Chunks of the file whose rows are shuffled together. The order of the chunks is always shuffled."""
    skip_bad: bool = False
    """Skip rows that are not finite, and count them. By default such a row ends the run."""

    @cached_property
    def rows(self) -> ControlRows:
        """The opened HDF5 file."""
        self.refuse_missing()
        from plimsoll.recipes.control.rows import ControlRows

        return ControlRows(self.data, split=self.split)

    def spec(self, needs: Needs) -> WindowSpec:
        rows = self.rows
        return WindowSpec(arrays=rows.spec, families=tuple(rows.families), states=rows.states)

    def memory(self, prepared: Prepared | None, reading: Reading, *, prefetch: int) -> HostMemory:
        rows = self.rows
        # Memory holds at most --mix-chunks + 1 chunks of examples, and one as it is read from the file.
        example_bytes = self.spec(reading.needs).example_bytes
        chunks = rows.chunk_rows * ((self.mix_chunks + 1) * example_bytes + rows.row_bytes)
        advice = 'a smaller --mix-chunks, or smaller chunks of the file (docs/control.md, "Huge chunks")'
        return HostMemory(bytes=READER_BYTES + chunks + self.in_flight(reading, prefetch), advice=advice)

    def facts(self) -> Facts:
        return facts_of([self.rows.path])

    def imports(self) -> tuple[str, ...]:
        return ("h5py",)

    def prepare(self, reading: Reading, say: Say) -> Prepared:
        rows = self.rows
        description = f"{len(rows):,} windows of {len(rows.families)} systems in {self.data}, split by {self.split}"
        facts = {"description": description, "rows": len(rows), "training_rows": rows.training_rows}
        return reading.length.prepared_for(rows.training_rows, data=self.data, facts=facts)

    def source(self, reading: Reading, *, prefetch: int) -> Source:
        return self.rows.loader(
            batch_size=reading.batch_size,
            seed=reading.seed,
            mix=self.mix_chunks,
            skip_bad=self.skip_bad,
            prefetch=prefetch,
        )

    def validation(self, reading: Reading, *, examples: int) -> Iterable[Batch]:
        return self.rows.validation(most=self.validation_rows, batch_size=examples, skip_bad=self.skip_bad)
