"""Initial embeddings of items: a truncated singular value decomposition of the user-item matrix.

Only training interactions are used. Each count is divided by the square roots of its user's and its item's total
counts, so that busy users and popular items do not dominate. An item's embedding is its row of the right singular
vectors, times the square roots of the singular values, scaled to a mean squared length of 1 over items.
"""

from typing import Any

import numpy as np
from jaxtyping import Float32, Int32, Int64

_RANDOM = 31
_START = 32
"""Numbers that, with the seed, select the random streams for random entries and for the solver's start vector."""


def factorised(
    sequences: Int32[np.ndarray, " interactions"],
    offsets: Int64[np.ndarray, " users_and_1"],
    *,
    items: int,
    width: int,
    seed: int,
) -> Float32[np.ndarray, "items_and_1 width"]:
    """Returns item embeddings, from a factorisation of the matrix that counts users' interactions with items.

    The ids in `sequences` count from 1. Columns beyond the rank of the matrix are random, and so are rows of items
    without interactions.
    """
    from scipy import sparse
    from scipy.sparse import linalg

    # Counts each user's interactions with each item: (users, items), float64.
    parts = np.ones(len(sequences)), sequences - 1, offsets.copy()
    counts: Any = sparse.csr_matrix(parts, shape=(len(offsets) - 1, items))
    counts.sum_duplicates()

    # Divides counts by the square roots of the users' and items' totals, and drops rows and columns of zeros.
    of_users = np.asarray(counts.sum(1)).ravel()
    of_items = np.asarray(counts.sum(0)).ravel()
    busy = of_users > 0
    taken = of_items > 0
    scaled = counts[busy][:, taken].multiply(of_users[busy, None] ** -0.5)
    scaled = scaled.multiply(of_items[None, taken] ** -0.5).tocsr()

    # Sorts vectors by decreasing singular value, and makes the entry of largest magnitude in each positive.
    smaller = min(scaled.shape)
    if width < smaller:
        start = np.random.default_rng([seed, _START]).normal(size=smaller)
        svds: Any = linalg.svds
        _, values, vectors = svds(scaled, k=width, v0=start, return_singular_vectors="vh")
        values = values[::-1]
        vectors = vectors[::-1]
    else:
        _, values, vectors = np.linalg.svd(scaled.toarray(), full_matrices=False)
    signs = np.sign(vectors[np.arange(len(vectors)), np.abs(vectors).argmax(1)])
    rows = (vectors * signs[:, None] * np.sqrt(np.maximum(values, 0))[:, None]).T.astype(np.float32)
    rows /= np.sqrt(np.mean(np.sum(rows**2, axis=1))) or 1.0
    # Entries without data are random, with rows of length about 1. The row of padding is zero.
    random = np.random.default_rng([seed, _RANDOM])
    embeddings = random.normal(scale=width**-0.5, size=(items + 1, width)).astype(np.float32)
    embeddings[0] = 0
    embeddings[1 + np.flatnonzero(taken), : rows.shape[1]] = rows
    return embeddings
