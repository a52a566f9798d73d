"""Probabilities of the next item: those of a trained model, mixed with those of three counting baselines.

    p(item)  ~  p_model(item) + sum over k of s_k(item)^2 / sum over items of s_k^2

where the items are the candidates. `s_k` are the scores of item_knn, item_knn_decayed and item_knn_markov
(recipes/recommend/baselines.py), which know pairs of items that occur too rarely to be learned. Language models are
mixed with their nearest neighbours in this way by Khandelwal et al. 2020 (https://arxiv.org/abs/1911.00172). The
notes, "A model mixed with counts", explain the equal parts and the squares.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from plimsoll.recipes.recommend.baselines import Baselines

COUNTED = ("item_knn", "item_knn_decayed", "item_knn_markov")
"""Baselines that a model is mixed with, in equal parts."""


def mixture(
    log_p: Float[np.ndarray, "users items_and_1"],
    counts: Baselines,
    histories: Sequence[Int[np.ndarray, " length"]],
    *,
    keep_seen: bool,
) -> Float[np.ndarray, "users items_and_1"]:
    """Returns log-probabilities of the next item; minus infinity for items that are no candidates.

    Args:
        log_p: The model's log-probabilities.
        counts: The baselines with their counts.
        histories: Items of each user, oldest first.
        keep_seen: True if items of the history are candidates, too.
    """
    mixed = _shares(np.exp(log_p), histories, keep_seen=keep_seen)
    for name in COUNTED:
        mixed += _shares(np.square(counts.scores(name, histories)), histories, keep_seen=keep_seen)
    mixed /= mixed.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):  # log 0
        return np.log(mixed)


def _shares(values: np.ndarray, histories: Sequence[np.ndarray], *, keep_seen: bool) -> np.ndarray:
    """Returns each candidate's share in the sum of its row; zeros if the sum is 0. `values` is changed in place."""
    values[:, 0] = 0
    if not keep_seen:
        for row, items in zip(values, histories, strict=True):
            row[items] = 0
    total = values.sum(axis=1, keepdims=True)
    values /= np.where(total > 0, total, 1)
    return values
