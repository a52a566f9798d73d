"""Assignment of items to clusters, for a softmax of two levels: over clusters, then over the members of one.

The cost of that softmax grows with the number of clusters plus the size of the largest cluster, so large clusters are
split.
"""

import warnings
from math import ceil

import numpy as np
from jaxtyping import Float32, Int, Int32

from plimsoll.recipes.recommend.prepare_options import Clustering

TIMES_MEAN = 4
"""Default limit on the size of a cluster, as a multiple of the mean size: larger clusters are split."""


def clustered(
    how: Clustering,
    *,
    clusters: int,
    largest: int | None,
    popularity: Int[np.ndarray, " items"],
    vectors: Float32[np.ndarray, "items width"],
    seed: int,
) -> Int32[np.ndarray, " items"]:
    """Returns the index of each item's cluster. No cluster is empty.

    K-means clusters of more than `largest` items are split, so there may be more than `clusters`.
    `popularity` and `vectors` come from training interactions only.
    """
    items = len(popularity)
    if how == "frequency":
        labels = np.empty(items, np.int32)
        labels[np.argsort(-popularity, kind="stable")] = np.arange(items) % clusters
        return labels

    # Mini-batches are fast, and their sums do not depend on the number of threads.
    from sklearn.cluster import MiniBatchKMeans

    directions = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    means = MiniBatchKMeans(clusters, random_state=seed % 2**32, batch_size=max(1024, 4 * clusters))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about equal points: clusters may be empty, and are then left out
        labels = means.fit_predict(directions)
    return _without_large(labels, directions, largest or TIMES_MEAN * ceil(items / clusters))


def _without_large(labels: np.ndarray, directions: np.ndarray, most: int) -> np.ndarray:
    """Returns each item's cluster after halving clusters above `most` items, at the median along their main axis."""
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    whole = []
    while members:
        cluster = members.pop()
        if len(cluster) <= most:
            whole.append(cluster)
            continue
        spread = directions[cluster] - directions[cluster].mean(axis=0)
        _, axes = np.linalg.eigh(spread.T @ spread)
        order = cluster[np.argsort(spread @ axes[:, -1], kind="stable")]
        middle = len(order) // 2
        members += [np.sort(order[:middle]), np.sort(order[middle:])]

    # Numbers the clusters in the order of their first items.
    numbers = np.empty(len(labels), np.int32)
    for number, cluster in enumerate(sorted(whole, key=lambda cluster: int(cluster[0]))):
        numbers[cluster] = number
    return numbers
