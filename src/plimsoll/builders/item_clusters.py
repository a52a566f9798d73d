"""Which cluster each item belongs to, for a softmax of two levels: first over clusters, then over the members of one.

Its cost grows with the number of clusters plus the size of the largest: a cluster that is too large is split in two.
"""

from __future__ import annotations

import importlib.util
import warnings
from math import ceil, sqrt

import numpy as np
from jaxtyping import Float32, Int, Int32

from plimsoll.builders.interaction_options import Clustering
from plimsoll.errors import DataError

NEIGHBOURS = 50
"""Of each item, in the affinity of spectral clustering; fewer where a cluster has fewer members on average."""
TIMES_MEAN = 4
"""Of the mean size: what a cluster is split above, if nothing else is said."""


def default_clusters(items: int) -> int:
    return ceil(sqrt(items))


def clustered(
    how: Clustering,
    *,
    clusters: int,
    largest: int | None,
    popularity: Int[np.ndarray, " items"],
    vectors: Float32[np.ndarray, "items width"],
    seed: int,
) -> Int32[np.ndarray, " items"]:
    """A number from 0 for each item, every number with a member; more than `clusters` of them where one was split.

    `popularity` and `vectors` are those of training.
    """
    items = len(popularity)
    if how == "frequency":
        found = np.empty(items, np.int32)
        found[np.argsort(-popularity, kind="stable")] = np.arange(items) % clusters
        return found
    directions = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    labels = {"kmeans": _kmeans, "spectral": _spectral}[how](directions, clusters, seed)
    most = largest if largest is not None else TIMES_MEAN * ceil(items / clusters)
    return _without_large(labels, directions, most)


def require_clustering(how: Clustering) -> None:
    """Asked before anything is read."""
    if how != "frequency" and importlib.util.find_spec("sklearn") is None:
        raise DataError(
            f"--clustering {how} needs scikit-learn, which is not installed: `pip install 'plimsoll[recommend]'` brings"
            " it, and --clustering frequency does without"
        )


def _kmeans(directions: np.ndarray, clusters: int, seed: int) -> np.ndarray:
    from sklearn.cluster import MiniBatchKMeans

    means = MiniBatchKMeans(clusters, random_state=seed % 2**32, n_init=3, batch_size=max(1024, 4 * clusters))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that some points are the same: clusters without members are not counted
        return means.fit_predict(directions)


def _spectral(directions: np.ndarray, clusters: int, seed: int) -> np.ndarray:
    from sklearn.cluster import SpectralClustering
    from sklearn.neighbors import kneighbors_graph

    if clusters == 1:
        return np.zeros(len(directions), np.int32)
    neighbours = min(NEIGHBOURS, max(2, len(directions) // clusters), len(directions) - 1)
    near = kneighbors_graph(directions, neighbours, include_self=False)
    cut = SpectralClustering(
        clusters, affinity="precomputed", assign_labels="kmeans", random_state=seed % 2**32, n_init=3
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the graph is not connected: its parts are clusters then
        return cut.fit_predict((near + near.T) / 2)


def _without_large(labels: np.ndarray, directions: np.ndarray, most: int) -> np.ndarray:
    """Each half has as many members, on the two sides of the cluster's middle where it is widest."""
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
        members += [np.sort(order[: len(order) // 2]), np.sort(order[len(order) // 2 :])]
    found = np.empty(len(labels), np.int32)
    for number, cluster in enumerate(sorted(whole, key=lambda one: int(one[0]))):
        found[cluster] = number
    return found
