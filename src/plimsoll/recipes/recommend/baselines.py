"""Four recommenders without training, as baselines for every trained one.

    popularity         how often an item was taken
    item_knn           its cosine with everything in the user's history, summed
    item_knn_decayed   its cosine with the last five of the history, halved with each step back
    item_knn_markov    the same, plus how often it came right after the last one

The cosine is that of the columns of the user-item matrix. Counts are of everything before the held-out items: for
testing that includes the items of validation, which no model was trained on. A trained model is mixed with the last
three (recipes/recommend/mixture.py).
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
"""`csr_matrix` of SciPy, whose types do not know its operators."""

BASELINES = ("popularity", "item_knn", "item_knn_decayed", "item_knn_markov")
RECENT = 5
DECAY = 0.5
"""Items of a history that have a weight, and the factor of the weight per step back."""
NEIGHBOUR_BYTES = 256 * MIB
"""Memory for cosines, at 8 bytes each. If that is not enough for all, each item keeps its highest ones."""
ROWS_TOGETHER = 256
"""Items whose neighbours are computed at a time."""


class Baselines:
    """Baselines for one split, or with counts of all interactions. Cosines and followers are computed on first use."""

    def __init__(
        self, interactions: Interactions, split: HeldOut | None, *, asked: Int[np.ndarray, " items"] | None = None
    ) -> None:
        """Counts items.

        Args:
            interactions: Users with their items.
            split: Split whose held-out items, and all after them, are not counted; None to count everything.
            asked: The only items that histories will have, which saves the cosines of the others.
        """
        self._users = interactions.users
        self._asked = asked
        self._size = interactions.items + 1
        firsts = interactions.offsets[:-1]
        lengths = (interactions.offsets[1:] if split is None else interactions.ends[split]) - firsts
        self._counted, self._starts = beginnings(interactions.sequences, firsts, lengths)
        """Items before the held-out ones, user by user, and the first place of each user; each has at least one."""
        self.popularity: Int64[np.ndarray, " items_and_1"] = np.bincount(self._counted, minlength=self._size)

    def scores(self, name: str, histories: Sequence[np.ndarray]) -> Float32[np.ndarray, "users items_and_1"]:
        """Returns a score per item; higher is better. Column 0 is padding.

        Args:
            name: One of `BASELINES`.
            histories: Items of each user, oldest first; at least one.
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
        """Cosines of each item with its neighbours other than itself: (items + 1, items + 1), float32."""
        # Who took what, however often: (users, items + 1).
        ones = np.ones(len(self._counted), np.float32)
        parts = ones, self._counted.copy(), self._starts.copy()  # SciPy sorts what it is given in place
        taken: Sparse = sparse.csr_matrix(parts, shape=(self._users, self._size))
        taken.sum_duplicates()
        taken.data[:] = 1

        # Columns of length 1, whose products are the cosines: some items' at a time.
        often = np.asarray(taken.sum(axis=0)).ravel()
        columns = (taken @ sparse.diags_array(1 / np.sqrt(np.maximum(often, 1)))).astype(np.float32).tocsr()
        rows = columns.T.tocsr()
        most = max(1, NEIGHBOUR_BYTES // (8 * self._size))
        items = np.arange(self._size) if self._asked is None else np.unique(self._asked)
        blocks = []
        for first in range(0, len(items), ROWS_TOGETHER):
            together = items[first : first + ROWS_TOGETHER]
            blocks.append(_nearest(rows[together] @ columns, together, most=most))

        # Each row into the place of its item.
        places = np.ones(len(items), np.float32), (items, np.arange(len(items)))
        return sparse.coo_matrix(places, shape=(self._size, len(items))).tocsr() @ sparse.vstack(blocks).tocsr()

    @cached_property
    def followers(self) -> Sparse:
        """Counts of how often a column's item came right after a row's: (items + 1, items + 1), float32."""
        inside = np.ones(len(self._counted), bool)
        inside[self._starts[1:] - 1] = False  # the last of each user has none
        before = np.flatnonzero(inside)
        pairs = self._counted[before], self._counted[before + 1]
        counts = sparse.coo_matrix((np.ones(len(before), np.float32), pairs), shape=(self._size, self._size))
        return counts.tocsr()  # which adds up what stands there twice

    def _weights(self, histories: Sequence[np.ndarray], *, recent: int | None) -> Sparse:
        """Returns weights of the histories' items: 1 for each, or 1, 0.5, 0.25, ... for the last ones."""
        histories = [items if recent is None else items[-recent:] for items in histories]
        lengths = [len(items) for items in histories]
        age = np.concatenate([np.arange(length)[::-1] for length in lengths])
        weights = np.ones(len(age)) if recent is None else DECAY**age
        parts = weights.astype(np.float32), np.concatenate(histories), np.cumsum([0, *lengths])
        return sparse.csr_matrix(parts, shape=(len(histories), self._size))


def _nearest(cosines: Sparse, items: Int[np.ndarray, " rows"], *, most: int) -> Sparse:
    """Returns the `most` highest values of each row, which is of one of `items`; none is its own neighbour.

    `cosines` is changed.
    """
    is_itself = cosines.indices == np.repeat(items, np.diff(cosines.indptr))
    cosines.data[is_itself] = 0
    for first, end in pairwise(cosines.indptr):
        values = cosines.data[first:end]
        if len(values) > most:
            values[np.argpartition(-values, most)[most:]] = 0
    cosines.eliminate_zeros()
    return cosines
