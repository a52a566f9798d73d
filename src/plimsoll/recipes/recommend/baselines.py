"""Four recommenders without training, as baselines for every trained one.

    popularity         an item's number of interactions
    item_knn           the sum of an item's cosines with all items of the user's history
    item_knn_decayed   the sum of its cosines with the user's last five items, halved with each step back
    item_knn_markov    item_knn_decayed, plus the number of times that the item came right after the user's last item

The cosine of two items is that of their columns in the user-item matrix. Counts exclude each user's held-out item and
later ones. For testing they include the validation items, on which no model was trained. A trained model is mixed with
the three item_knn baselines (recipes/recommend/mixture.py).
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float32, Int, Int64
from scipy import sparse

from plimsoll.recipes.recommend.interactions import HeldOut, Interactions, beginnings
from plimsoll.units import MIB

Sparse = Any
"""SciPy's `csr_matrix`: Any, because SciPy's type stubs lack its operators."""

BASELINES = ("popularity", "item_knn", "item_knn_decayed", "item_knn_markov")
RECENT = 5
DECAY = 0.5
"""`RECENT` is the number of most recent items that count; `DECAY` multiplies the weight at each step back."""
NEIGHBOUR_BYTES = 256 * MIB
"""Limit on the bytes of cosines, at 8 bytes each. If they do not all fit, each item keeps only its highest cosines."""
ROWS_TOGETHER = 256
"""Number of items whose neighbours are computed at a time."""


class Baselines:
    """Baselines that count the interactions before a split, or all. Cosines and counts of followers are cached."""

    def __init__(
        self, interactions: Interactions, split: HeldOut | None, *, asked: Int[np.ndarray, " items"] | None = None
    ) -> None:
        """Counts items.

        Args:
            interactions: Users with their items.
            split: Split whose held-out items, and all later items, are not counted; None to count all.
            asked: Ids of the items that histories may have: other items get no cosines. None for all items.
        """
        self._users = interactions.users
        self._asked = asked
        self._size = interactions.items + 1
        firsts = interactions.offsets[:-1]
        lengths = (interactions.offsets[1:] if split is None else interactions.ends[split]) - firsts
        self._counted, self._starts = beginnings(interactions.sequences, firsts, lengths)
        """Ids of counted items, user by user, and the index of each user's first id. Each user has at least one."""
        self.popularity: Int64[np.ndarray, " items_and_1"] = np.bincount(self._counted, minlength=self._size)

    def scores(self, name: str, histories: Sequence[np.ndarray]) -> Float32[np.ndarray, "users items_and_1"]:
        """Returns a score per item; higher is better. Column 0 is padding.

        Args:
            name: One of `BASELINES`.
            histories: Item ids of each user, oldest first; at least one id per user.
        """
        if name == "popularity":
            return np.tile(self.popularity.astype(np.float32), (len(histories), 1))
        if name == "item_knn":
            return (self._weights(histories, recent=None) @ self.cosines).toarray()
        scores = (self._weights(histories, recent=RECENT) @ self.cosines).toarray()
        if name == "item_knn_markov":
            scores += (self._weights(histories, recent=1) @ self.followers).toarray()
        return scores

    @cached_property
    def cosines(self) -> Sparse:
        """Cosines between different items: sparse (items + 1, items + 1), float32."""
        # Sparse matrix (users, items + 1) with 1 at each item that a user took. Column 0 is padding.
        ones = np.ones(len(self._counted), np.float32)
        parts = ones, self._counted.copy(), self._starts.copy()  # SciPy sorts its arguments in place
        taken: Sparse = sparse.csr_matrix(parts, shape=(self._users, self._size))
        taken.sum_duplicates()
        taken.data[:] = 1

        # Products of columns of unit length are the cosines, here of `ROWS_TOGETHER` items at a time with all items.
        often = np.asarray(taken.sum(axis=0)).ravel()
        columns = (taken @ sparse.diags_array(1 / np.sqrt(np.maximum(often, 1)))).astype(np.float32).tocsr()
        rows = columns.T.tocsr()
        most = max(1, NEIGHBOUR_BYTES // (8 * self._size))
        items = np.arange(self._size) if self._asked is None else np.unique(self._asked)
        blocks = []
        for first in range(0, len(items), ROWS_TOGETHER):
            together = items[first : first + ROWS_TOGETHER]
            blocks.append(_nearest(rows[together] @ columns, together, most=most))

        # Moves each row of cosines to the row index that is its item's id.
        places = np.ones(len(items), np.float32), (items, np.arange(len(items)))
        return sparse.coo_matrix(places, shape=(self._size, len(items))).tocsr() @ sparse.vstack(blocks).tocsr()

    @cached_property
    def followers(self) -> Sparse:
        """Number of times that a column's item came right after a row's item: (items + 1, items + 1), float32."""
        inside = np.ones(len(self._counted), bool)
        inside[self._starts[1:] - 1] = False  # a user's last item has no follower
        before = np.flatnonzero(inside)
        pairs = self._counted[before], self._counted[before + 1]
        counts = sparse.coo_matrix((np.ones(len(before), np.float32), pairs), shape=(self._size, self._size))
        return counts.tocsr()  # adds up repeated pairs

    def _weights(self, histories: Sequence[np.ndarray], *, recent: int | None) -> Sparse:
        """Returns weights of the items of each history, sparse (histories, items + 1).

        Without `recent` all weigh 1. Else only the `recent` newest count: 1, 0.5, ... from the newest item back.
        """
        histories = [items if recent is None else items[-recent:] for items in histories]
        lengths = [len(items) for items in histories]
        age = np.concatenate([np.arange(length)[::-1] for length in lengths])
        weights = np.ones(len(age)) if recent is None else DECAY**age
        parts = weights.astype(np.float32), np.concatenate(histories), np.cumsum([0, *lengths])
        return sparse.csr_matrix(parts, shape=(len(histories), self._size))


def _nearest(cosines: Sparse, items: Int[np.ndarray, " rows"], *, most: int) -> Sparse:
    """Returns the `most` highest cosines of each row, without the cosine of an item with itself.

    Row i belongs to the item `items[i]`. `cosines` is changed in place.
    """
    is_itself = cosines.indices == np.repeat(items, np.diff(cosines.indptr))
    cosines.data[is_itself] = 0
    for first, end in pairwise(cosines.indptr):
        values = cosines.data[first:end]
        if len(values) > most:
            values[np.argpartition(-values, most)[most:]] = 0
    cosines.eliminate_zeros()
    return cosines
