"""Users' sequences of items, as arrays in a folder that `plimsoll prepare recommend` wrote.

`sequences.npy` holds the items of all users, one user after another, each user's in the order of time, as ids from 1 (0
is padding, and never an item). `offsets.npy` has the index of each user's first item there; its final entry is the
number of interactions. `clusters.npy` has the cluster of each id, -1 for padding; `embeddings.npy`, if there is one, an
initial vector per id, zeros for padding; `items.jsonl` a line per item, in the order of ids, with its name in the file
that was prepared; `meta.json` the sizes and the options; `manifest.json` the checksums of all files, which `check`
verifies.

Splits are ranges of indices, not files. A user with three items or more has the last one for testing, the one before it
for validation, and the earlier ones for training. Users with fewer items are only trained on.
"""

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32, Int32, Int64

from plimsoll.data.token_table import loaded
from plimsoll.errors import DataError
from plimsoll.files.facts import Facts
from plimsoll.files.folder import made, opened
from plimsoll.files.manifest import damage

PADDING = 0
"""Id of padding, which is no item."""
LEAST_EVALUATED = 3
"""Fewest items of a user who is evaluated."""
SEQUENCES = "sequences.npy"
OFFSETS = "offsets.npy"
CLUSTERS = "clusters.npy"
EMBEDDINGS = "embeddings.npy"
ITEMS = "items.jsonl"

HeldOut = Literal["validation", "test"]
Split = Literal["train"] | HeldOut


class Interactions:
    """Set of interactions. Sequences are memory-mapped; clusters, names and embeddings are loaded when used.

    Raises:
        DataError: The folder has no complete set.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder).expanduser()
        contents = opened(self.folder)
        if contents is None or "interactions" not in contents.counts:
            raise DataError(
                f"{self.folder} is no data set of interactions, or not a complete one. `plimsoll prepare recommend"
                " --interactions FILE --out FOLDER` makes one"
            )
        self.made_with = contents.made_with
        self.about = contents.counts
        self.users: int = self.about["users"]
        self.items: int = self.about["items"]
        """Number of items without padding: ids go from 1 to this number."""
        self.clusters: int = self.about["clusters"]
        self.offsets: Int64[np.ndarray, " users_and_1"] = loaded(self.folder / OFFSETS)
        """Index of each user's first item in `sequences`; the final entry is the number of interactions."""
        self.sequences: Int32[np.ndarray, " interactions"] = loaded(self.folder / SEQUENCES, mapped=True)

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

    @property
    def catalogue(self) -> list[Path]:
        """Files that assign an item to each id, and a cluster to each item."""
        return [self.folder / ITEMS, self.folder / CLUSTERS]

    @cached_property
    def evaluated(self) -> Int64[np.ndarray, " evaluated"]:
        """Indices of the users who have an item for validation and one for testing."""
        return np.flatnonzero(np.diff(self.offsets) >= LEAST_EVALUATED)

    @cached_property
    def ends(self) -> dict[Split, Int64[np.ndarray, " users"]]:
        """Exclusive end of each user's history in `sequences`, for each split.

        For validation and test, the item at this index is the held-out item of an `evaluated` user.
        """
        ends = self.offsets[1:]
        is_evaluated = np.diff(self.offsets) >= LEAST_EVALUATED
        before_both = ends - 2 * is_evaluated
        return {"train": before_both, "validation": before_both, "test": ends - is_evaluated}

    def history(self, user: int, split: Split) -> Int32[np.ndarray, " length"]:
        """Returns the user's items for training, or those before the held-out item of a split."""
        return self.sequences[self.offsets[user] : self.ends[split][user]]

    def targets(self, split: HeldOut) -> Int32[np.ndarray, " evaluated"]:
        """Returns the item to predict for each of the `evaluated` users."""
        return np.asarray(self.sequences[self.ends[split][self.evaluated]])

    @cached_property
    def cluster_of(self) -> Int32[np.ndarray, " items_and_1"]:
        """Cluster of each item id, from 0 to `clusters` - 1; -1 for padding. No cluster is empty."""
        return loaded(self.folder / CLUSTERS)

    @cached_property
    def names(self) -> list[str]:
        """Names of the items in the file that was prepared, in the order of their ids."""
        with open(self.folder / ITEMS, encoding="utf-8") as lines:
            return [json.loads(line)["original"] for line in lines]

    def described(self, item: int) -> dict[str, Any]:
        """Returns the id and the name of an item."""
        return {"id": item, "original": self.names[item - 1]}

    def embeddings(self) -> Float32[np.ndarray, "items_and_1 width"] | None:
        """Returns initial vectors, zeros for padding; None if the set was prepared without them."""
        return None if self.about["embedding_size"] is None else loaded(self.folder / EMBEDDINGS)

    def check(self) -> None:
        """Reads all files. Raises DataError if one differs from its checksum."""
        if problem := damage(self.folder):
            raise DataError(f"{self.folder} is damaged, {problem}: copy it again, or prepare it again")


def beginnings(
    sequences: Int32[np.ndarray, " interactions"],
    firsts: Int64[np.ndarray, " users"],
    lengths: Int64[np.ndarray, " users"],
) -> tuple[Int32[np.ndarray, " chosen"], Int64[np.ndarray, " users_and_1"]]:
    """Returns the first `lengths[i]` items of each user i, joined, and the index there of each user's first item.

    `firsts` has the index of each user's first item in `sequences`.
    """
    starts = np.concatenate([[0], np.cumsum(lengths)])
    places = np.repeat(firsts - starts[:-1], lengths) + np.arange(starts[-1])
    return np.asarray(sequences[places]), starts


def is_interactions(folder: Path | str) -> bool:
    """Returns True if the folder has a set of interactions, complete or not."""
    return (Path(folder).expanduser() / SEQUENCES).is_file()


def write_interactions(
    folder: Path,
    made_with: Facts,
    *,
    sequences: Int32[np.ndarray, " interactions"],
    offsets: Int64[np.ndarray, " users_and_1"],
    cluster_of: Int32[np.ndarray, " items_and_1"],
    names: list[str],
    embeddings: Float32[np.ndarray, "items_and_1 width"] | None,
    about: Mapping[str, Any],
) -> int:
    """Writes the folder, and returns its size in bytes. meta.json gets the sizes, `made_with` and `about`."""
    arrays = {OFFSETS: offsets.astype(np.int64), SEQUENCES: sequences, CLUSTERS: cluster_of}
    if embeddings is not None:
        arrays[EMBEDDINGS] = embeddings

    def write(partial: Path) -> dict[str, Any]:
        for name, values in arrays.items():
            np.save(partial / name, values, allow_pickle=False)
        with open(partial / ITEMS, "w", encoding="utf-8") as file:
            for item, name in enumerate(names, 1):
                file.write(json.dumps({"id": item, "original": name}, ensure_ascii=False) + "\n")
        sizes = {
            "items": len(names),
            "users": len(offsets) - 1,
            "interactions": len(sequences),
            "clusters": int(cluster_of.max()) + 1,
            "embedding_size": None if embeddings is None else embeddings.shape[1],
        }
        return {**sizes, **about}

    out = made(folder.expanduser().absolute(), made_with, write).path
    return sum(path.stat().st_size for path in out.iterdir())
