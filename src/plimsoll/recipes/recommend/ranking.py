"""Rank of the item to predict among all items of the catalogue, and metrics of ranks.

A rank counts from 0. Ties count against the item: items with an equal score or NaN come before it. With one
item to predict, the share of hits among the first k is also the recall, and NDCG@k is 1 / log2(rank + 2) for a rank
below k, else 0.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from jaxtyping import Float, Int, Int32

from plimsoll.recipes.recommend.interactions import HeldOut, Interactions

CUTS = (1, 5, 10, 20)

Score = Callable[[Sequence[Int32[np.ndarray, " length"]]], Iterable[tuple[str, Float[np.ndarray, "users items_and_1"]]]]
"""Function from users' histories to pairs of a name and scores of all items; higher is better. Column 0 is padding."""


def ranks(
    scores: Float[np.ndarray, "users items_and_1"],
    targets: Int[np.ndarray, " users"],
    *,
    seen: Sequence[Int[np.ndarray, " items"]] | None = None,
) -> Int[np.ndarray, " users"]:
    """Returns the rank of each user's target.

    Padding (column 0) and the items that a user has `seen`, except the target, are no candidates.
    """
    own = scores[np.arange(len(targets)), targets]
    ahead = ~(scores < own[:, None])
    ahead[:, 0] = False
    for row, items in zip(ahead, seen or (), strict=seen is not None):
        row[items] = False
    ahead[np.arange(len(targets)), targets] = False
    return ahead.sum(axis=1)


def best(scores: Float[np.ndarray, " items_and_1"], count: int) -> list[int]:
    """Returns the ids with the highest scores, highest first, ties by id. Padding and scores of -inf are left out."""
    order = 1 + np.argsort(-scores[1:], kind="stable")[:count]
    return [int(item) for item in order if scores[item] > -np.inf]


def metrics_of(ranks: Int[np.ndarray, " users"]) -> dict[str, float]:
    """Returns hit rate and NDCG at each cutoff of `CUTS`, the mean of 1 / (rank + 1), and the number of `users`."""
    users = len(ranks)
    gains = 1 / np.log2(ranks + 2.0)
    hits = {f"hr@{cut}": float((ranks < cut).sum()) / users for cut in CUTS}
    ndcg = {f"ndcg@{cut}": float(gains[ranks < cut].sum()) / users for cut in CUTS}
    return {**hits, **ndcg, "mrr": float((1 / (ranks + 1.0)).sum()) / users, "users": users}


def mean_metrics(
    data: Interactions, split: HeldOut, score: Score, *, users: int, keep_seen: bool
) -> dict[str, dict[str, float]]:
    """Returns the mean metrics over the evaluated users of a split, by the names that `score` yields.

    Args:
        data: Users with their items.
        split: Split whose held-out items are ranked.
        score: Function that scores all items for some users.
        users: Number of users that are scored at a time.
        keep_seen: True to rank items that a user took before, too.
    """
    targets = data.targets(split)
    blocks: dict[str, list[np.ndarray]] = {}
    for first in range(0, len(data.evaluated), users):
        block = slice(first, first + users)
        histories = [data.history(user, split) for user in data.evaluated[block].tolist()]
        seen = None if keep_seen else histories
        for name, scores in score(histories):
            blocks.setdefault(name, []).append(ranks(scores, targets[block], seen=seen))
    return {name: metrics_of(np.concatenate(of_blocks)) for name, of_blocks in blocks.items()}
