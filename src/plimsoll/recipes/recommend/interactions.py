"""Users' sequences of items: a folder that `plimsoll prepare recommend` wrote, as arrays.

`sequences.npy` holds the items of all users one after the other, each user's in the order of time, as ids from 1 (0 is
padding, and never an item). `offsets.npy` has the first place of each user and, last, the number of places;
`clusters.npy` the cluster of each id, -1 for padding; `embeddings.npy`, if there is one, an initial vector per id,
zeros for padding; `items.jsonl` the names of items (recipes/recommend/catalogue.py); `meta.json` the sizes and the
options. `manifest.json` has the checksums of all of it: what they find is not looked for again.

Splits are places, not files. Of a user with three items or more the last is for testing and the one before it for
validation; the earlier ones are for training. Users with fewer are only trained on.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float32, Int32, Int64

from plimsoll.data.token_table import loaded
from plimsoll.errors import DataError
from plimsoll.files.folder import opened
from plimsoll.files.manifest import damage
from plimsoll.recipes.recommend.catalogue import ITEMS, Catalogue

PADDING = 0
"""Id that is no item."""
LEAST_EVALUATED = 3
"""Fewest items of a user who is evaluated."""
SEQUENCES, OFFSETS = "sequences.npy", "offsets.npy"
CLUSTERS, EMBEDDINGS = "clusters.npy", "embeddings.npy"

HeldOut = Literal["validation", "test"]
Split = Literal["train"] | HeldOut


class Interactions:
    """Set of interactions. Sequences are memory-mapped; everything else is loaded on first use.

    Raises:
        DataError: There is none in the folder.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder).expanduser()
        contents = opened(self.folder)
        if contents is None or "interactions" not in contents.counts:
            raise DataError(
                f"{self.folder} is no data set of interactions, or not a whole one. `plimsoll prepare recommend"
                " --interactions FILE --out FOLDER` makes one"
            )
        self.made_with = contents.made_with
        self.about = contents.counts
        self.users: int = self.about["users"]
        self.items: int = self.about["items"]
        """Number of items without padding: ids go from 1 to this number."""
        self.clusters: int = self.about["clusters"]
        self.offsets: Int64[np.ndarray, " users_and_1"] = self._loaded(OFFSETS)
        """First place of each user in `sequences`, then the number of interactions."""
        self.sequences: Int32[np.ndarray, " interactions"] = self._loaded(SEQUENCES, mapped=True)

    def __len__(self) -> int:
        """Returns the number of interactions."""
        return int(self.offsets[-1])

    @property
    def files(self) -> list[Path]:
        """Files that training reads."""
        names = [SEQUENCES, OFFSETS, CLUSTERS, ITEMS]
        if self.about["embedding_size"] is not None:
            names.append(EMBEDDINGS)
        return [self.folder / name for name in names]

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
        return self._loaded(CLUSTERS)

    @cached_property
    def catalogue(self) -> Catalogue:
        """Names of the items."""
        return Catalogue.read(self.folder)

    def embeddings(self) -> Float32[np.ndarray, "items_and_1 width"] | None:
        """Returns initial vectors, zeros for padding; None if the set was prepared without them."""
        return None if self.about["embedding_size"] is None else self._loaded(EMBEDDINGS)

    def check(self) -> None:
        """Reads all of it. Raises DataError where it is not as it was written."""
        if problem := damage(self.folder):
            raise DataError(f"{self.folder} is damaged, {problem}: copy it again, or prepare it again")

    def _loaded(self, name: str, *, mapped: bool = False) -> np.ndarray:
        return loaded(self.folder / name, mapped=mapped)


def is_interactions(folder: Path | str) -> bool:
    """Returns whether the folder has a set of interactions, complete or not."""
    return (Path(folder).expanduser() / SEQUENCES).is_file()
