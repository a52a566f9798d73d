"""Windows of states and the controls that follow, as `prepare control` writes them, ready to train on.

Controls come in units of their family's own spread (root mean square), so that a family whose largest control is a
thousand times its usual one counts as much as any other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cached_property, partial
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
    "trajectory": "trajectory",
    "variant": "variant",
}
HELD_OUT_TRAJECTORIES = 15
"""Percentage that is held out where the split is by trajectory."""
LEAST_SPREAD = 1e-6

Split = Literal["variant", "trajectory", "none"]


class ControlRows(Hdf5Rows):
    """One file. It may have any window, and any number of states and inputs."""

    def __init__(self, path: str | Path, *, split: Split) -> None:
        unused = {"none": ("trajectory", "variant"), "variant": ("trajectory",), "trajectory": ("variant",)}[split]
        super().__init__(path, {name: place for name, place in COLUMNS.items() if name not in unused})
        self.split = split
        shapes = {name: shape for name, (shape, _) in self.row_spec.items()}
        axes = [len(shapes[name]) for name in ("inputs", "controls", "system")]
        controls = shapes["controls"]
        if axes != [2, 1, 0] or shapes["masks"] != controls:
            raise DataError(
                f"the rows of {self.path} have the shapes {shapes}: expected inputs of (window, features), controls and"
                " masks of (inputs), and a name as system"
            )
        self.spec: dict[str, tuple[tuple[int, ...], str]] = {
            "inputs": (shapes["inputs"], "float32"),
            "controls": (controls, "float32"),
            "masks": (controls, "float32"),
            "family": ((), "int32"),
        }
        """Name to the shape and dtype of one example."""

    @cached_property
    def families(self) -> list[str]:
        """Names of the families, sorted; an example's `family` is an index of this list."""
        group = self._file.get("normalization")
        names = sorted(group) if isinstance(group, h5py.Group) else []
        if not names:
            raise DataError(
                f"{self.path} has no group `normalization`: it says which families there are, and the spread of their"
                " controls (control_std). `plimsoll prepare control` writes it"
            )
        return names

    @cached_property
    def spreads(self) -> np.ndarray:
        """Root mean square of each control in the file's units, (families, inputs); 1 for inputs a family has not."""
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
        """Returns the state and the control that are the units of one family in the file."""
        state, control = (self.array(f"normalization/{family}/{name}") for name in ("state_max", "control_max"))
        assert state is not None  # as `prepare control` writes them, whose settings are read first
        assert control is not None
        return state, control

    @property
    def states(self) -> int:
        """States among the features, the first ones; all of them where the file does not say (`max_state_dim`)."""
        return int(self.attributes.get("max_state_dim", self.spec["inputs"][0][1]))

    @property
    def training_rows(self) -> int:
        """Rows to train on: exact, but for a split by trajectory, whose share is expected."""
        if self.split == "trajectory":
            return len(self) * (100 - HELD_OUT_TRAJECTORIES) // 100
        return self._border

    @property
    def _border(self) -> int:
        """First row of the held-out variants; the end of the file where the split is another."""
        if self.split != "variant":
            return len(self)
        border = self.attributes.get("train_rows")
        if border is None:
            raise DataError(
                f"{self.path} does not say from which row on its variants are held out (attribute `train_rows`): use"
                " --split trajectory, or none"
            )
        return int(border)

    def loader(self, *, batch_size: int, seed: int, mix: int, skip_bad: bool, prefetch: int) -> Loader:
        """Returns batches without end of the rows to train on."""
        batches = MixedChunks(
            self,
            batch_size=batch_size,
            seed=seed,
            rows=(0, self._border),
            mix=mix,
            skip_bad=skip_bad,
            derive=partial(self._derived, held_out=False),
        )
        return Loader(batches, prefetch=prefetch)

    def validation(self, *, most: int, batch_size: int, skip_bad: bool = False) -> Iterator[Rows]:
        """Yields about `most` rows in chunks from all over the held-out part, always the same.

        Every batch is full: rows that only fill up the last one have masks of zero.
        """
        if self.split == "none" or not most:
            return
        begin, end = (self._border, len(self)) if self.split == "variant" else (0, len(self))
        if end <= begin:
            return
        first, count, span = self.spans(begin, end)
        share = 1.0 if self.split == "variant" else HELD_OUT_TRAJECTORIES / 100
        wanted = min(count, max(1, round(most / (span * share))))
        chosen = np.unique(np.linspace(0, count - 1, wanted).round().astype(int)) + first
        spans = [(max(begin, int(at) * span), min(end, (int(at) + 1) * span)) for at in chosen]
        sent, derive = 0, partial(self._derived, held_out=True)
        for rows, count in in_order(self, spans, batch_size=batch_size, derive=derive, skip_bad=skip_bad):
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

    def _derived(self, rows: Rows, *, held_out: bool) -> Rows:
        """Returns the examples of rows as they were read; of a split by trajectory those of one side."""
        if self.split == "trajectory":
            mine = is_held_out(rows["trajectory"]) == held_out
            rows = {name: values[mine] for name, values in rows.items()}
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


def is_held_out(trajectory: np.ndarray) -> np.ndarray:
    """Tells which trajectories are held out, by a hash of their numbers: the same in every run and every file."""
    unique, where = np.unique(trajectory, return_inverse=True)
    digests = [
        hashlib.blake2b(number.to_bytes(8, "little", signed=True), digest_size=4).digest() for number in unique.tolist()
    ]
    shares = np.array([int.from_bytes(digest, "little") % 100 for digest in digests], np.int64)
    return (shares < HELD_OUT_TRAJECTORIES)[where]
