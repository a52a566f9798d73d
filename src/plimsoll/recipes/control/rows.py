"""Windows of states and the controls that follow, as `prepare control` writes them, ready to train on.

Controls come in units of their family's own spread (root mean square), so that a family whose largest control is a
thousand times its usual one counts as much as any other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from plimsoll.data.batch_source import BatchSource
from plimsoll.data.hdf5.rows import Hdf5Rows, Rows
from plimsoll.data.hdf5.same_file import identity, require_same
from plimsoll.data.hdf5.shuffled import in_order, mixed_loader
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
"""In a hundred, where the split is by trajectory."""
LEAST_SPREAD = 1e-6

Split = Literal["variant", "trajectory", "none"]


class ControlRows:
    """One file. It may have any window, and any number of states and inputs."""

    def __init__(self, path: str | Path, *, split: Split) -> None:
        columns = dict(COLUMNS)
        if split == "none":
            columns = {name: place for name, place in columns.items() if name not in ("trajectory", "variant")}
        elif split == "variant":
            columns.pop("trajectory")
        else:
            columns.pop("variant")
        self._rows, self.split = Hdf5Rows(path, columns), split
        self.path = self._rows.path
        self._require_shapes()

    def __len__(self) -> int:
        return len(self._rows)

    @cached_property
    def families(self) -> list[str]:
        """By name; their places are what `family` counts."""
        named = sorted(self._rows.group("normalization"))
        if not named:
            raise DataError(
                f"{self.path} has no group `normalization`: it says which families there are, and the spread of their"
                " controls (control_std). `plimsoll prepare control` writes it"
            )
        return named

    @cached_property
    def spreads(self) -> np.ndarray:
        """(families, inputs): the root mean square of each control, in the file's units; 1 for inputs it has not."""
        found = np.ones((len(self.families), self.spec["controls"][0][0]), np.float32)
        for row, family in enumerate(self.families):
            std = self._rows.array(f"normalization/{family}/control_std")
            if std is None or len(std) > found.shape[1] or not np.all(np.isfinite(std)) or not np.any(std > 0):
                told = "missing" if std is None else np.array2string(std, max_line_width=1000)
                raise DataError(
                    f"{self.path} does not say how far the controls of {family} spread:"
                    f" normalization/{family}/control_std is {told}, and should be their root mean squares, at most"
                    f" {found.shape[1]} of them. `plimsoll prepare control` writes it"
                )
            found[row, : len(std)] = np.maximum(std, LEAST_SPREAD)
        return found

    @property
    def attributes(self) -> dict[str, Any]:
        return self._rows.attributes

    def largest(self, family: str) -> tuple[np.ndarray, np.ndarray]:
        """State and control that the file's units are, of one family."""
        found = [self._rows.array(f"normalization/{family}/{name}") for name in ("state_max", "control_max")]
        if found[0] is None or found[1] is None:
            raise DataError(f"{self.path} does not say the units of {family} (state_max, control_max)")
        return found[0], found[1]

    @property
    def spec(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Of an example."""
        spec = self._rows.spec
        return {
            "inputs": (spec["inputs"][0], "float32"),
            "controls": (spec["controls"][0], "float32"),
            "masks": (spec["controls"][0], "float32"),
            "family": ((), "int32"),
        }

    @property
    def example_bytes(self) -> int:
        return sum(
            int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize for shape, dtype in self.spec.values()
        )

    def mixing_bytes(self, mix: int) -> int:
        """Chunks in memory at most: those that are drawn from, and one as it is read."""
        return self._rows.chunk_rows * ((mix + 1) * self.example_bytes + self._rows.row_bytes)

    @property
    def training_rows(self) -> int:
        """Exactly, but for a split by trajectory, whose share is expected."""
        if self.split == "trajectory":
            return len(self) * (100 - HELD_OUT_TRAJECTORIES) // 100
        return self._border

    @property
    def _border(self) -> int:
        """Rows from here on are of held-out variants."""
        if self.split != "variant":
            return len(self)
        told = self._rows.attributes.get("train_rows")
        if told is None:
            raise DataError(
                f"{self.path} does not say from which row on its variants are held out (attribute `train_rows`): use"
                " --split trajectory, or none"
            )
        if not 0 <= int(told) <= len(self):
            raise DataError(
                f"{self.path} has {len(self):,} rows, and says that its variants are held out from row {int(told):,} on"
                " (attribute `train_rows`): it is damaged, or rows are missing. Use --split trajectory, or none, or"
                " make it anew"
            )
        return int(told)

    def warning(self, *, mix: int) -> str | None:
        return self._rows.warning(mix=mix)

    @property
    def has_huge_chunks(self) -> bool:
        return self._rows.has_huge_chunks

    def identity(self) -> dict[str, Any]:
        return identity(self._rows)

    def require_same(self, then: Mapping[str, Any]) -> str | None:
        return require_same(self._rows, then)

    def loader(self, *, batch_size: int, seed: int, mix: int, skip_bad: bool, prefetch: int) -> BatchSource:
        return mixed_loader(
            self._rows,
            batch_size=batch_size,
            seed=seed,
            rows=(0, self._border),
            mix=mix,
            skip_bad=skip_bad,
            derive=partial(self._derived, held_out=False),
            prefetch=prefetch,
        )

    def validation(self, *, most: int, batch_size: int, skip_bad: bool = False) -> Iterator[Rows]:
        """Chunks from all over the held-out part, always the same; every batch full, filled up with rows that count
        nothing."""
        if self.split == "none" or not most:
            return
        begin, end = (self._border, len(self)) if self.split == "variant" else (0, len(self))
        if end <= begin:
            return
        first, count, span = self._rows.spans(begin, end)
        share = 1.0 if self.split == "variant" else HELD_OUT_TRAJECTORIES / 100
        wanted = min(count, max(1, round(most / (span * share))))
        chosen = np.unique(np.linspace(0, count - 1, wanted).round().astype(int)) + first
        spans = [(max(begin, int(at) * span), min(end, (int(at) + 1) * span)) for at in chosen]
        left, sent = None, 0
        derive = partial(self._derived, held_out=True)
        for rows in in_order(self._rows, spans, derive=derive, skip_bad=skip_bad):
            left = rows if left is None else {name: np.concatenate([left[name], rows[name]]) for name in rows}
            while len(left["family"]) >= batch_size and sent < most:
                yield {name: values[:batch_size] for name, values in left.items()}
                left, sent = {name: values[batch_size:] for name, values in left.items()}, sent + batch_size
        if left is not None and len(left["family"]) and sent < most:
            yield _filled(left, batch_size)

    def _derived(self, rows: Rows, *, held_out: bool) -> Rows:
        if self.split == "trajectory":
            mine = is_held_out(rows["trajectory"]) == held_out
            rows = {name: values[mine] for name, values in rows.items()}
        family = self._family(rows["system"])
        return {
            "inputs": rows["inputs"].astype(np.float32, copy=False),
            "controls": rows["controls"].astype(np.float32, copy=False) / self.spreads[family],
            "masks": rows["masks"].astype(np.float32, copy=False),
            "family": family,
        }

    def _family(self, names: np.ndarray) -> np.ndarray:
        known = self._known
        found = np.searchsorted(known, names)
        found = np.minimum(found, len(known) - 1)
        strange = known[found] != names
        if strange.any():
            name = bytes(names[strange][0]).decode("utf-8", "replace")
            raise DataError(f"{self.path} has rows of {name!r}, which is not among its families in `normalization`")
        return found.astype(np.int32)

    @cached_property
    def _known(self) -> np.ndarray:
        return np.array([family.encode() for family in self.families], "S50")

    def _require_shapes(self) -> None:
        spec = self._rows.spec
        expected = {"inputs": 2, "controls": 1, "masks": 1, "system": 0}
        for name, axes in expected.items():
            shape, dtype = spec[name]
            place, words = COLUMNS[name], {2: "(window, features)", 1: "(inputs)", 0: "one name"}
            wrong = len(shape) != axes or (axes and not str(dtype).startswith("float"))
            if wrong:
                raise DataError(
                    f"{place} of {self.path} has rows of shape {shape} and type {dtype}: expected {words[axes]}"
                    f"{' of floats' if axes else ' of bytes'}"
                )
        if spec["controls"][0] != spec["masks"][0]:
            raise DataError(
                f"controls and control_masks of {self.path} have rows of {spec['controls'][0]} and"
                f" {spec['masks'][0]}: they must be alike"
            )


def is_held_out(trajectory: np.ndarray) -> np.ndarray:
    """By a hash of its number: the same in every run, whatever else the file holds."""
    unique, where = np.unique(trajectory, return_inverse=True)
    chosen = np.array([_share(int(number)) < HELD_OUT_TRAJECTORIES for number in unique], bool)
    return chosen[where]


def _share(number: int) -> int:
    digest = hashlib.blake2b(number.to_bytes(8, "little", signed=True), digest_size=4).digest()
    return int.from_bytes(digest, "little") % 100


def _filled(rows: Rows, batch_size: int) -> dict[str, Any]:
    """The last batch, with masks of zero where there is no row."""
    missing = batch_size - len(rows["family"])
    return {
        name: np.concatenate([values, np.zeros((missing, *values.shape[1:]), values.dtype)])
        for name, values in rows.items()
    }
