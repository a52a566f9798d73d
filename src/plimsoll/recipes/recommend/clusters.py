"""Assignment of items to clusters, for a softmax of two levels: over clusters, then over the members of one.

Its cost grows with the number of clusters plus the size of the largest, so a cluster that is too large is split.
"""

import warnings
from math import ceil

import numpy as np
from jaxtyping import Float32, Int, Int32

from plimsoll.recipes.recommend.prepare_options import Clustering

TIMES_MEAN = 4
"""Default largest size of a cluster, in mean sizes: larger ones are split."""


def clustered(
    how: Clustering,
    *,
    clusters: int,
    largest: int | None,
    popularity: Int[np.ndarray, " items"],
    vectors: Float32[np.ndarray, "items width"],
    seed: int,
) -> Int32[np.ndarray, " items"]:
    """Returns the cluster of each item. No cluster is empty; there are more than `clusters` if one was split.

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
        warnings.simplefilter("ignore")  # about equal points: clusters without members are not counted
        labels = means.fit_predict(directions)
    return _without_large(labels, directions, largest or TIMES_MEAN * ceil(items / clusters))


def _without_large(labels: np.ndarray, directions: np.ndarray, most: int) -> np.ndarray:
    """Returns clusters with large ones split at the middle of their widest direction, into halves of equal size."""
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

    # Numbers in the order of the clusters' first items.
    numbers = np.empty(len(labels), np.int32)
    for number, cluster in enumerate(sorted(whole, key=lambda cluster: int(cluster[0]))):
        numbers[cluster] = number
    return numbers
