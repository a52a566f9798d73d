"""Assignment of items to clusters, for a softmax of two levels: over clusters, then over the members of one.

Its cost grows with the number of clusters plus the size of the largest, so a cluster that is too large is split.
"""

from __future__ import annotations

import importlib.util
import warnings
from math import ceil
from typing import Any

import numpy as np
from jaxtyping import Float32, Int, Int32

from plimsoll.errors import DataError
from plimsoll.recipes.recommend.prepare_options import Clustering

NEIGHBOURS = 50
"""Neighbours of each item in the affinity of spectral clustering; fewer if clusters have fewer members on average."""
SMALL = 1000
"""Items up to which all eigenvectors are computed: 8 MB, and exact if eigenvalues are equal."""
TIMES_MEAN = 4
"""Default size, in mean sizes, above which a cluster is split."""

_START = 33
"""Number of the random stream of a seed; others are in embeddings.py."""


def clustered(
    how: Clustering,
    *,
    clusters: int,
    largest: int | None,
    popularity: Int[np.ndarray, " items"],
    vectors: Float32[np.ndarray, "items width"],
    seed: int,
) -> Int32[np.ndarray, " items"]:
    """Returns a cluster per item, each with a member; more than `clusters` of them if one was split.

    `popularity` and `vectors` come from training interactions only.
    """
    items = len(popularity)
    if how == "frequency":
        labels = np.empty(items, np.int32)
        labels[np.argsort(-popularity, kind="stable")] = np.arange(items) % clusters
        return labels
    directions = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    labels = {"kmeans": _kmeans, "spectral": _spectral}[how](directions, clusters, seed)
    most = largest if largest is not None else TIMES_MEAN * ceil(items / clusters)
    return _without_large(labels, directions, most)


def require_clustering(how: Clustering) -> None:
    """Raises an error if scikit-learn is needed and missing. Called before anything is read."""
    if how != "frequency" and importlib.util.find_spec("sklearn") is None:
        raise DataError(
            f"--clustering {how} needs scikit-learn, which is not installed: `pip install scikit-learn`"
            " brings it, and --clustering frequency does without"
        )


def _kmeans(directions: np.ndarray, clusters: int, seed: int) -> np.ndarray:
    """Returns k-means clusters, computed in batches: that is fast, and its sums do not depend on threads."""
    from sklearn.cluster import MiniBatchKMeans

    means = MiniBatchKMeans(clusters, random_state=seed % 2**32, batch_size=max(1024, 4 * clusters))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that some points are the same: clusters without members are not counted
        return means.fit_predict(directions)


def _spectral(directions: np.ndarray, clusters: int, seed: int) -> np.ndarray:
    """Returns k-means clusters of the eigenvectors of the normalised graph of nearest neighbours, as rows of length 1.

    Ng, Jordan and Weiss 2001, https://papers.nips.cc/paper/2092. scikit-learn's own method factorises the graph and had
    not finished after nine minutes on a shared core, for 11,924 items and 110 clusters; this takes 5 s there.
    """
    if clusters == 1:
        return np.zeros(len(directions), np.int32)
    from sklearn.neighbors import kneighbors_graph

    neighbours = min(NEIGHBOURS, max(2, len(directions) // clusters), len(directions) - 1)
    near: Any = kneighbors_graph(directions, neighbours, include_self=False)
    graph = (near + near.T) / 2
    scale = np.asarray(graph.sum(axis=1)).ravel() ** -0.5
    vectors = _largest_eigenvectors(graph.multiply(scale[:, None]).multiply(scale[None]).tocsr(), clusters, seed)
    return _kmeans(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12), clusters, seed)


def _largest_eigenvectors(graph: Any, count: int, seed: int) -> np.ndarray:
    if graph.shape[0] <= max(SMALL, count + 1):  # Lanczos needs more rows than eigenvectors
        return np.linalg.eigh(graph.toarray())[1][:, -count:]
    from scipy.sparse import linalg

    start = np.random.default_rng([seed, _START]).normal(size=graph.shape[0])
    return linalg.eigsh(graph, k=count, which="LA", v0=start)[1]


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
        members += [np.sort(order[: len(order) // 2]), np.sort(order[len(order) // 2 :])]
    numbers = np.empty(len(labels), np.int32)
    for number, cluster in enumerate(sorted(whole, key=lambda cluster: int(cluster[0]))):
        numbers[cluster] = number
    return numbers
