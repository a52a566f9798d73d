"""Ranks of the right items among all in a run of recommend, and what comes after a history.

In a process that imports JAX. Scores are of the whole catalogue, a block of users at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
import numpy as np

from plimsoll.errors import RunError
from plimsoll.levers.weight_bits import readable
from plimsoll.recipes.recommend.baselines import Baselines
from plimsoll.recipes.recommend.interactions import HeldOut, Interactions
from plimsoll.recipes.recommend.next_item import NextItem
from plimsoll.recipes.recommend.ranking import added, best, means, ranks, sums, without_seen
from plimsoll.recipes.recommend.recipe import Recommend
from plimsoll.recipes.recommend.rows import histories
from plimsoll.types import TrainedRun
from plimsoll.units import MIB

SPLITS: tuple[HeldOut, ...] = ("validation", "test")
BLOCK_BYTES = 32 * MIB
"""Of scores at a time; a softmax of two levels holds a few times as many for a moment."""
MOST_USERS = 256
"""Of a block: where a large model reads their histories, they are what counts."""
SHOWN_USERS, SHOWN_ITEMS, SHOWN_HISTORY = 3, 5, 6
"""Users in a report, items ranked for each, and items of their histories that are named."""

Scorer = Callable[[np.ndarray], np.ndarray]
"""Histories (users, length), padded on the right, to the log-probabilities of all items (users, items + 1)."""


def evaluate(trained: TrainedRun, request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns metrics of validation, if it was not learned from, and of test, and those of the baselines beside them.

    Args:
        trained: A run of recommend.
        request: `keep_seen`; `raw` asks for the metrics of the weights as they were trained, too.
    """
    recipe, keep_seen = _recipe(trained), bool(request.get("keep_seen"))
    data = recipe.interactions
    if not len(data.evaluated):
        raise RunError(f"{trained.run} has no held-out set to evaluate on: {recipe.without_validation}")
    users = max(1, min(MOST_USERS, BLOCK_BYTES // (4 * (data.items + 1)), len(data.evaluated)))

    splits = SPLITS[1:] if recipe.learn_validation else SPLITS

    def by(score: Scorer) -> dict[str, dict[str, float]]:
        how: dict[str, Any] = {"users": users, "length": recipe.seq_len, "keep_seen": keep_seen}
        return {split: _ranked(score, data, split, **how) for split in splits}

    answer: dict[str, Any] = {"keep_seen": keep_seen} | by(scorer(trained, users=users))
    if request.get("raw"):
        answer["raw"] = by(scorer(trained, users=users, average=False))
    answer["baselines"] = {split: Baselines(data, split).evaluate(keep_seen=keep_seen) for split in splits}
    return answer


def scorer(trained: TrainedRun, *, users: int, average: bool = True) -> Scorer:
    """Of so many histories at a time, or fewer."""
    recipe = _recipe(trained)
    task = cast(NextItem, recipe.task(trained.plan.compute(jax.default_backend())))
    params = trained.params(average=average)
    params = params | {"trainable": readable(params["trainable"])}
    run = jax.jit(task.log_probabilities)

    def score(ids: np.ndarray) -> np.ndarray:
        filled = np.concatenate([ids, np.ones((users - len(ids), ids.shape[1]), ids.dtype)])  # one shape to compile
        return np.array(run(params, filled))[: len(ids)]

    return score


def _ranked(
    score: Scorer, data: Interactions, split: HeldOut, *, users: int, length: int, keep_seen: bool
) -> dict[str, float]:
    ends, parts = data.ends(split), []
    for first in range(0, len(data.evaluated), users):
        chosen = data.evaluated[first : first + users]
        scores = score(histories(data, chosen, split, length=length))
        seen = None if keep_seen else [data.sequences[data.offsets[user] : ends[user]] for user in chosen]
        parts.append(sums(ranks(scores, np.asarray(data.sequences[ends[chosen]]), seen=seen)))
    return means(added(parts))


def rank(trained: TrainedRun, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the likeliest items after a history. `asked`: `history` (ids of the data set), `top`, `keep_seen`."""
    recipe = _recipe(trained)
    names, history = recipe.interactions.catalogue, asked["history"]
    ids = np.zeros((1, recipe.seq_len), np.int32)
    read = history[-recipe.seq_len :]
    ids[0, : len(read)] = read
    scores = scorer(trained, users=1)(ids)
    if not asked["keep_seen"]:
        without_seen(scores, [np.array(history)])
    items = best(scores[0], asked["top"])
    return {
        "run": trained.run,
        "step": trained.step,
        "history": [_called(names, item) for item in history],
        "read": len(read),
        "items": [
            _called(names, item) | {"probability": float(np.exp(scores[0, item])), "score": float(scores[0, item])}
            for item in items
        ],
    }


def next_of_users(trained: TrainedRun, *, users: int, top: int) -> list[dict[str, Any]]:
    """Returns what comes next for the first users of the test split, and the item they really took then.

    Ranks count from 1, among what a user had not taken before.
    """
    recipe = _recipe(trained)
    data = recipe.interactions
    chosen = data.evaluated[:users]
    if not len(chosen):
        raise RunError(f"{trained.run} has no held-out set to rank for: {recipe.without_validation}")
    before, targets = histories(data, chosen, "test", length=recipe.seq_len), data.targets("test")[: len(chosen)]
    scores = scorer(trained, users=len(chosen))(before)
    ends = data.ends("test")
    seen = [data.sequences[data.offsets[user] : ends[user]] for user in chosen]
    places = ranks(scores, targets, seen=seen)  # from here on what was seen scores minus infinity
    return [
        {
            "step": trained.step,
            "history": [_called(data.catalogue, int(item)) for item in row[row > 0]],
            "taken": _called(data.catalogue, int(target)),
            "place": int(place) + 1,
            "items": [
                _called(data.catalogue, item) | {"probability": float(np.exp(of_user[item]))}
                for item in best(of_user, top)
            ],
        }
        for row, target, place, of_user in zip(before, targets, places, scores, strict=True)
    ]


def shown(trained: TrainedRun) -> list[dict[str, Any]]:
    """Returns the exhibits of a report: what comes next for the first users of the test split."""
    return [
        {
            "kind": "table",
            "title": f"What comes next, user {number} of the test split",
            "caption": f"After {_newest(user['history'])}. Really taken then: {_titled(user['taken'])}, which stands"
            f" {user['place']:,}. of what was not taken before, by the checkpoint of step {user['step']:,}.",
            "header": ["item", "place", "probability"],
            "rows": [
                [
                    _titled(item) + (" (taken)" if item["id"] == user["taken"]["id"] else ""),
                    str(place),
                    f"{100 * item['probability']:.2f} %",
                ]
                for place, item in enumerate(user["items"], start=1)
            ],
        }
        for number, user in enumerate(next_of_users(trained, users=SHOWN_USERS, top=SHOWN_ITEMS), start=1)
    ]


def _newest(history: list[dict[str, Any]]) -> str:
    """Returns the newest items of a history, oldest first, and how many there are before them."""
    earlier = len(history) - SHOWN_HISTORY
    newest = ", ".join(map(_titled, history[-SHOWN_HISTORY:]))
    return f"{earlier:,} more, {newest}" if earlier > 0 else newest


def _titled(item: Mapping[str, Any]) -> str:
    return item["title"] or item["original"]


def _called(names: Any, item: int) -> dict[str, Any]:
    return {"id": item, "original": names.originals[item - 1], "title": names.titles[item - 1]}


def _recipe(trained: TrainedRun) -> Recommend:
    """Its data is there, and is that of the run."""
    assert isinstance(trained.recipe, Recommend)
    trained.recipe.data_changed(trained.prepared)
    return trained.recipe
