"""Evaluates a run of recommend by the ranks of the right items, and ranks the next items after a history.

This module imports JAX. Every item of the catalogue is scored, for a block of users at a time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np

from plimsoll.errors import RunError
from plimsoll.recipes.recommend.baselines import BASELINES, Baselines
from plimsoll.recipes.recommend.data import Interactions
from plimsoll.recipes.recommend.interactions import HeldOut
from plimsoll.recipes.recommend.mixture import mixture
from plimsoll.recipes.recommend.next_item import NextItem
from plimsoll.recipes.recommend.ranking import best, mean_metrics, ranks
from plimsoll.recipes.recommend.rows import padded
from plimsoll.types import TrainedRun
from plimsoll.units import MIB

SPLITS: tuple[HeldOut, ...] = ("validation", "test")
BLOCK_BYTES = 32 * MIB
"""Limit on the bytes of scores for a block of users. A softmax of two levels briefly needs a few times as many."""
MOST_USERS = 256
"""Most users of a block, which bounds the activations of a large model that reads their histories."""
SHOWN_USERS = 3
SHOWN_ITEMS = 5
SHOWN_HISTORY = 6
"""Numbers shown in a report: of users, of items ranked for each user, and of the newest items of a history."""

Scorer = Callable[[Sequence[np.ndarray]], np.ndarray]
"""Function from histories of users, oldest item first, to log-probabilities of all items (users, items + 1)."""


def evaluate(trained: TrainedRun, request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the metrics of validation and test, for the run and for the baselines.

    Args:
        trained: A run of recommend.
        request: `keep_seen` (True to rank items of the history, too), and `raw` (True to evaluate the weights without
            averaging, too).

    Returns:
        `validation` and `test`: metrics of the model's probabilities mixed with those of baselines (`mixture`). `model`
        has both splits for the model alone, `raw` for its weights without averaging, `baselines` for each baseline.
    """
    data = _data(trained).interactions
    keep_seen = bool(request.get("keep_seen"))
    if not len(data.evaluated):
        raise RunError(f"{trained.run} has no held-out set to evaluate on: {Interactions.no_validation}")

    # Evaluates the model, and its raw weights if requested.
    users = max(1, min(MOST_USERS, BLOCK_BYTES // (4 * (data.items + 1)), len(data.evaluated)))
    models = {"model": scorer(trained, users=users)}
    if request.get("raw"):
        models["raw"] = scorer(trained, users=users, average=False)

    answer: dict[str, Any] = {"keep_seen": keep_seen, "baselines": {}}
    answer |= {name: {} for name in models}
    for split in SPLITS:
        counts = Baselines(data, split)

        def scored(histories: Sequence[np.ndarray], counts: Baselines = counts) -> Iterator[tuple[str, np.ndarray]]:
            log_p = {name: score(histories) for name, score in models.items()}
            yield "mixed", mixture(log_p["model"], counts, histories, keep_seen=keep_seen)
            yield from log_p.items()
            for name in BASELINES:
                yield name, counts.scores(name, histories)

        metrics = mean_metrics(data, split, scored, users=users, keep_seen=keep_seen)
        answer[split] = metrics.pop("mixed")
        for name in models:
            answer[name][split] = metrics.pop(name)
        answer["baselines"][split] = metrics
    return answer


def scorer(trained: TrainedRun, *, users: int, average: bool = True) -> Scorer:
    """Returns the function that scores up to `users` histories at a time."""
    length = _data(trained).seq_len
    task = cast(NextItem, trained.task)
    params = trained.params(average=average)
    run = jax.jit(task.log_probabilities)

    def score(histories: Sequence[np.ndarray]) -> np.ndarray:
        ids = padded(histories, length=length)
        filled = np.concatenate([ids, np.ones((users - len(ids), ids.shape[1]), ids.dtype)])  # one shape to compile
        return np.array(run(params, filled))[: len(ids)]

    return score


def rank(trained: TrainedRun, request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the likeliest items after a history.

    Args:
        trained: A run of recommend.
        request: `history` (item ids), `top` (number of items), `keep_seen` (True to rank items of the history, too).
    """
    length = _data(trained).seq_len
    data = _data(trained).interactions
    history = request["history"]
    items = np.array(history)
    counts = Baselines(data, None, asked=items)
    (scores,) = mixture(scorer(trained, users=1)([items]), counts, [items], keep_seen=request["keep_seen"])
    return {
        "run": trained.run,
        "step": trained.step,
        "history": [data.described(item) for item in history],
        "read": min(len(history), length),
        "items": [
            data.described(item) | {"probability": float(np.exp(scores[item])), "score": float(scores[item])}
            for item in best(scores, request["top"])
        ],
    }


def next_of_users(trained: TrainedRun, *, users: int, top: int) -> list[dict[str, Any]]:
    """Returns the ranked next items of the first test users, and the item that each really took.

    `place` is the rank, from 1, of the item really taken. Items that the user took before are not ranked.
    """
    length = _data(trained).seq_len
    data = _data(trained).interactions
    chosen = data.evaluated[:users]
    if not len(chosen):
        raise RunError(f"{trained.run} has no held-out set to rank for: {Interactions.no_validation}")
    seen = [data.history(user, "test") for user in chosen.tolist()]
    targets = data.targets("test")[: len(chosen)]
    counts = Baselines(data, "test", asked=np.concatenate(seen))
    scores = mixture(scorer(trained, users=len(chosen))(seen), counts, seen, keep_seen=False)
    places = ranks(scores, targets, seen=seen)
    return [
        {
            "history": [data.described(int(item)) for item in items[-length:]],
            "taken": data.described(int(target)),
            "place": int(place) + 1,
            "items": [
                data.described(item) | {"probability": float(np.exp(of_user[item]))} for item in best(of_user, top)
            ],
        }
        for items, target, place, of_user in zip(seen, targets, places, scores, strict=True)
    ]


def shown(trained: TrainedRun) -> list[dict[str, Any]]:
    """Returns tables for the report: the ranked next items of the first test users."""
    exhibits = []
    for number, user in enumerate(next_of_users(trained, users=SHOWN_USERS, top=SHOWN_ITEMS), start=1):
        taken = user["taken"]
        newest = ", ".join(item["original"] for item in user["history"][-SHOWN_HISTORY:])
        earlier = len(user["history"]) - SHOWN_HISTORY
        history = f"{earlier:,} more, {newest}" if earlier > 0 else newest
        rows = [
            [
                item["original"] + (" (taken)" if item["id"] == taken["id"] else ""),
                str(place),
                f"{100 * item['probability']:.2f} %",
            ]
            for place, item in enumerate(user["items"], start=1)
        ]
        exhibits.append(
            {
                "kind": "table",
                "title": f"What comes next, user {number} of the test split",
                "caption": f"After {history}. Really taken then: {taken['original']}, at place {user['place']:,}"
                f" of the items not taken before, by the checkpoint of step {trained.step:,}.",
                "header": ["item", "place", "probability"],
                "rows": rows,
            }
        )
    return exhibits


def _data(trained: TrainedRun) -> Interactions:
    """Returns the run's data, after a check that it is present and unchanged."""
    _ = trained.data  # raises if the data is missing or has changed
    return trained.recipe.data
