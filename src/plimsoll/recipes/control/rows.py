"""Training examples from a file of `prepare control`: windows of states, and the controls that follow.

Controls are in units of their family's own spread (root mean square), so that a family whose largest control is a
thousand times its usual one counts as much as any other.
"""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Literal

import h5py
import numpy as np

from plimsoll.data.hdf5.rows import Hdf5Rows, Rows
from plimsoll.data.hdf5.shuffled import MixedChunks, in_order
from plimsoll.data.loader import Loader
from plimsoll.errors import DataError

COLUMNS = {
    "inputs": "input_sequences",
    "controls": "controls",
    "masks": "control_masks",
    "system": "system_ids",
}
LEAST_SPREAD = 1e-6


class ControlRows(Hdf5Rows):
    """Rows of one HDF5 file, with windows of any length and any number of states and inputs."""

    def __init__(self, path: str | Path, *, split: Literal["variant", "none"]) -> None:
        super().__init__(path, COLUMNS)
        self.split = split
        shapes = {name: shape for name, (shape, _) in self.row_spec.items()}
        axes = [len(shapes[name]) for name in ("inputs", "controls", "system")]
        controls = shapes["controls"]
        if axes != [2, 1, 0] or shapes["masks"] != controls:
            raise DataError(
                f"the rows of {self.path} have the shapes {shapes}: expected inputs (window, features), controls and"
                " masks of one equal length, and one name as system"
            )
        self.spec: dict[str, tuple[tuple[int, ...], str]] = {
            "inputs": (shapes["inputs"], "float32"),
            "controls": (controls, "float32"),
            "masks": (controls, "float32"),
            "family": ((), "int32"),
        }
        """Shape and dtype of each array of an example, by its name."""

    @cached_property
    def families(self) -> list[str]:
        """Names of the families, sorted; an example's `family` is an index into this list."""
        group = self._file.get("normalization")
        names = sorted(group) if isinstance(group, h5py.Group) else []
        if not names:
            raise DataError(
                f"{self.path} has no group `normalization`: it must name the families, with the spread of their"
                " controls (control_std). `plimsoll prepare control` writes it"
            )
        return names

    @cached_property
    def spreads(self) -> np.ndarray:
        """Root mean square of each control in the file's units, (families, inputs); 1 for inputs that a family
        lacks."""
        spreads = np.ones((len(self.families), self.spec["controls"][0][0]), np.float32)
        for row, family in enumerate(self.families):
            std = self.array(f"normalization/{family}/control_std")
            if std is None:
                raise DataError(
                    f"{self.path} has no normalization/{family}/control_std, as `plimsoll prepare control` writes it"
                )
            spreads[row, : len(std)] = np.maximum(std, LEAST_SPREAD)
        return spreads

    def largest(self, family: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns the largest states and controls of one family, which are its units in the file."""
        state, control = (self.array(f"normalization/{family}/{name}") for name in ("state_max", "control_max"))
        assert state is not None  # `prepare control` writes both; callers have checked that it made the file
        assert control is not None
        return state, control

    @property
    def states(self) -> int:
        """Number of states, which are the first features; all features if the file has no `max_state_dim`."""
        return int(self.attributes.get("max_state_dim", self.spec["inputs"][0][1]))

    @cached_property
    def training_rows(self) -> int:
        """Number of training rows, which begin the file; the rows of held-out variants, if any, follow."""
        if self.split == "none":
            return len(self)
        rows = self.attributes.get("train_rows")
        if rows is None:
            raise DataError(
                f"{self.path} does not say from which row on its variants are held out (attribute `train_rows`): set"
                " it, or use --split none"
            )
        return int(rows)

    def loader(self, *, batch_size: int, seed: int, mix: int, skip_bad: bool, prefetch: int) -> Loader:
        """Returns an endless loader of batches of training rows."""
        batches = MixedChunks(
            self,
            batch_size=batch_size,
            seed=seed,
            rows=(0, self.training_rows),
            mix=mix,
            skip_bad=skip_bad,
            derive=self._derived,
        )
        return Loader(batches, prefetch=prefetch)

    def validation(self, *, most: int, batch_size: int, skip_bad: bool = False) -> Iterator[Rows]:
        """Yields batches of about `most` rows in total, the same in every call, from chunks spread evenly over the
        held-out rows.

        Rows with masks of zero fill up the last batch.
        """
        begin, end = self.training_rows, len(self)
        if end <= begin or not most:
            return
        first, count, span = self.spans(begin, end)
        wanted = min(count, max(1, round(most / span)))
        chosen = np.unique(np.linspace(0, count - 1, wanted).round().astype(int)) + first
        spans = [(max(begin, int(at) * span), min(end, (int(at) + 1) * span)) for at in chosen]
        sent = 0
        for rows, count in in_order(self, spans, batch_size=batch_size, derive=self._derived, skip_bad=skip_bad):
            if sent >= most:
                return
            missing = batch_size - count
            if missing:
                rows = {
                    name: np.concatenate([values, np.zeros((missing, *values.shape[1:]), values.dtype)])
                    for name, values in rows.items()
                }
            yield rows
            sent += count

    def _derived(self, rows: Rows) -> Rows:
        """Converts rows of the file to training examples."""
        known = np.array([family.encode() for family in self.families], "S50")
        names = rows["system"]
        family = np.minimum(np.searchsorted(known, names), len(known) - 1)
        strange = names[known[family] != names]
        if len(strange):
            raise DataError(
                f"{self.path} has rows of {strange[0].decode('utf-8', 'replace')!r}, which is not among its families in"
                " `normalization`"
            )
        return {
            "inputs": rows["inputs"].astype(np.float32, copy=False),
            "controls": rows["controls"].astype(np.float32, copy=False) / self.spreads[family],
            "masks": rows["masks"].astype(np.float32, copy=False),
            "family": family.astype(np.int32),
        }
