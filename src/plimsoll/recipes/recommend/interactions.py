"""Users' sequences of items: a folder that `plimsoll prepare recommend` wrote, checked when it is opened.

`sequences.npy` holds the items of all users one after the other, each user's in the order of time, as ids from 1 (0 is
padding, and never an item). `offsets.npy` has the first place of each user and, last, the number of places;
`clusters.npy` the cluster of each id, -1 for padding; `embeddings.npy`, if there is one, an initial vector per id,
zeros for padding; `items.jsonl` the names of items (recipes/recommend/catalogue.py); `catalogue.json` the sizes.

Splits are places, not files. Of a user with three items or more the last is for testing and the one before it for
validation; the earlier ones are for training. Users with fewer are only trained on.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32, Int32, Int64

from plimsoll.data.disk import read_json
from plimsoll.data.token_table import loaded
from plimsoll.errors import DataError
from plimsoll.recipes.recommend.catalogue import Catalogue

PADDING = 0
"""Id that is no item."""
LEAST_EVALUATED = 3
"""Fewest items of a user who is evaluated."""
ABOUT, SEQUENCES, OFFSETS = "catalogue.json", "sequences.npy", "offsets.npy"
CLUSTERS, EMBEDDINGS = "clusters.npy", "embeddings.npy"
SLICE = 2**20
"""Ids that are checked at a time."""

HeldOut = Literal["validation", "test"]
Split = Literal["train"] | HeldOut


class Interactions:
    """Set of interactions. Sequences are memory-mapped; everything else is loaded on first use."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder).expanduser()
        self.about = _about(self.folder)
        self.users: int = self.about["users"]
        self.items: int = self.about["items"]
        """Number of items without padding: ids go from 1 to this number."""
        self.clusters: int = self.about["clusters"]
        self.offsets: Int64[np.ndarray, " users_and_1"] = self._offsets()
        """First place of each user in `sequences`, then the number of interactions."""
        self.sequences: Int32[np.ndarray, " interactions"] = self._sequences()

    def __len__(self) -> int:
        """Returns the number of interactions."""
        return int(self.offsets[-1])

    def sha256(self) -> str:
        """Returns a hash of all sequences. The files are read, because pages of a mapping would stay in memory."""
        digest = hashlib.sha256()
        for name in (SEQUENCES, OFFSETS):
            with open(self.folder / name, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    @cached_property
    def evaluated(self) -> Int64[np.ndarray, " evaluated"]:
        """Users who have an item for validation and one for testing."""
        return np.flatnonzero(np.diff(self.offsets) >= LEAST_EVALUATED)

    @cached_property
    def ends(self) -> dict[Split, Int64[np.ndarray, " users"]]:
        """Returns where each user's training items end, or the history before the held-out item of a split.

        That item is at this place, if the user is one of the `evaluated`.
        """
        evaluated = np.diff(self.offsets) >= LEAST_EVALUATED
        before_both, before_last = self.offsets[1:] - 2 * evaluated, self.offsets[1:] - evaluated
        return {"train": before_both, "validation": before_both, "test": before_last}

    def history(self, user: int, split: Split) -> Int32[np.ndarray, " length"]:
        """Returns the user's items for training, or those before the held-out item of a split."""
        return self.sequences[self.offsets[user] : self.ends[split][user]]

    def targets(self, split: HeldOut) -> Int32[np.ndarray, " evaluated"]:
        """Returns the item to predict for each of the `evaluated` users."""
        return np.asarray(self.sequences[self.ends[split][self.evaluated]])

    @cached_property
    def cluster_of(self) -> Int32[np.ndarray, " items_and_1"]:
        """Cluster of each id, from 0 to `clusters` - 1, each of them with a member; -1 for padding."""
        path, clusters = self._loaded(CLUSTERS, self.items + 1)
        inside = (clusters[1:] >= 0) & (clusters[1:] < self.clusters)
        if clusters[0] != -1 or not inside.all():
            at = 0 if clusters[0] != -1 else 1 + int(np.argmin(inside))
            wanted = "-1, for padding" if at == 0 else f"0 to {self.clusters - 1:,}"
            raise DataError(f"{path}: item {at:,} has the cluster {clusters[at]:,}, and {wanted}, was expected")
        clusters = clusters.astype(np.int32)
        if clusters_sha256(clusters, self.about["catalogue"]) != self.about["clusters_sha256"]:
            raise DataError(
                f"{path} has a cluster for each of {self.items:,} items, but is not the file that was made for this"
                " catalogue: it is another catalogue's, or was changed. Put the old file back, or prepare the set again"
            )
        return clusters

    @cached_property
    def catalogue(self) -> Catalogue:
        """Names of the items."""
        catalogue = Catalogue.read(self.folder)
        if len(catalogue.originals) != self.items or catalogue.sha256 != self.about["catalogue"]:
            raise DataError(
                f"{self.folder} has {len(catalogue.originals):,} items in items.jsonl and {self.items:,} in {ABOUT},"
                " and they are not the same catalogue: prepare the data set again"
            )
        return catalogue

    def embeddings(self) -> Float32[np.ndarray, "items_and_1 width"] | None:
        """Returns initial vectors, zeros for padding; None if the set was prepared without them."""
        if self.about["embedding_size"] is None:
            return None
        path, vectors = self._loaded(EMBEDDINGS, self.items + 1, self.about["embedding_size"], kinds="f")
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all() or vectors[0].any():
            at = int(np.argmin(finite))
            raise DataError(f"{path}: row {at:,} has {'NaN or infinity' if at else 'no zeros'}: prepare the set again")
        return vectors.astype(np.float32, copy=False)

    def check(self) -> None:
        """Reads all of it. Opening checks sequences and offsets; clusters, names and embeddings are checked here."""
        _ = self.cluster_of, self.catalogue
        self.embeddings()

    def _loaded(self, name: str, *shape: int, mapped: bool = False, kinds: str = "iu") -> tuple[Path, np.ndarray]:
        """Returns the path of an array and its values, which must have this shape."""
        path = self.folder / name
        values = loaded(path, mapped=mapped, kinds=kinds)
        if values.shape != shape:
            raise DataError(
                f"{path} has the shape {values.shape}, and {ABOUT} beside it asks for {shape}: it is another set's, or"
                " the set is not whole. Prepare it again"
            )
        return path, values

    def _offsets(self) -> np.ndarray:
        end = self.about["interactions"]
        path, offsets = self._loaded(OFFSETS, self.users + 1)
        falls = np.flatnonzero(offsets[1:] <= offsets[:-1])
        if len(falls):
            at = int(falls[0])
            raise DataError(
                f"{path}: offset {at + 1:,} is {offsets[at + 1]:,}, and the one before it {offsets[at]:,}: they must"
                " ascend, since every user has an item. Prepare the data set again"
            )
        if offsets[0] != 0 or offsets[-1] != end:
            raise DataError(
                f"{path} goes from {offsets[0]:,} to {offsets[-1]:,}, and {ABOUT} says there are {end:,} interactions:"
                " prepare the data set again"
            )
        return offsets.astype(np.int64)

    def _sequences(self) -> np.ndarray:
        path, sequences = self._loaded(SEQUENCES, self.about["interactions"], mapped=True)
        for first in range(0, len(sequences), SLICE):
            ids = np.asarray(sequences[first : first + SLICE])
            wrong = (ids <= PADDING) | (ids > self.items)
            if wrong.any():
                at = int(np.argmax(wrong))
                place = first + at
                user = int(np.searchsorted(self.offsets, place, side="right")) - 1
                raise DataError(
                    f"{path}: place {place:,}, of user {user:,}, has the item {ids[at]:,}, and the catalogue has ids 1"
                    f" to {self.items:,}. Prepare the data set again"
                )
        return sequences if sequences.dtype == np.int32 else sequences.astype(np.int32)


def is_interactions(folder: Path | str) -> bool:
    """Returns whether the folder has a set of interactions, complete or not."""
    folder = Path(folder).expanduser()
    return (folder / ABOUT).is_file() or (folder / SEQUENCES).is_file()


def clusters_sha256(cluster_of: Int32[np.ndarray, " items_and_1"], catalogue: str) -> str:
    """Returns a hash of the clusters and of the catalogue they belong to."""
    return hashlib.sha256(catalogue.encode() + cluster_of.astype("<i4").tobytes()).hexdigest()


_COUNTS = ("items", "users", "interactions", "clusters")


def _about(folder: Path) -> dict[str, Any]:
    """Returns the content of catalogue.json, after checking every field that is used."""
    path = folder / ABOUT
    absent = (
        f"there is no {ABOUT} in {folder}: no data set of interactions is there. `plimsoll prepare recommend"
        " --interactions FILE --out FOLDER` makes one"
    )
    about = read_json(path, absent=absent, again="Prepare the data set again")
    needed = (*_COUNTS, "catalogue", "clusters_sha256", "embedding_size")
    missing = [name for name in needed if name not in about] if isinstance(about, dict) else list(needed)
    if missing:
        raise DataError(f"{path} does not say {', '.join(missing)}: it is no set of interactions, or not a whole one")
    for name in (*_COUNTS, "embedding_size"):
        value = about[name]
        if not (isinstance(value, int) and value >= 1) and not (name == "embedding_size" and value is None):
            raise DataError(f"{path}: {name} must be a whole number, 1 or more, got {value!r}")
    return about
