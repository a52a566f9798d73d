"""Any elementwise optax transformation over a state in the host's memory: leaf by leaf, piece by piece.

levers/offload.py says why, and what it costs. The update is optax's own, called on rows of one leaf at a time, so the
numbers and the state are the same, whether it is placed on the host or on the device.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import optax
from jax import Array

from plimsoll.levers.offload import on_host, over_host_pieces
from plimsoll.optimizers.in_place import InPlace, Parts, elementwise
from plimsoll.optimizers.norm import clip_by_norm
from plimsoll.optimizers.shards import on_own_part

SHARED = -1
"""Owner of a number that all leaves share, as the count of updates."""


def streaming(
    rule: optax.GradientTransformation, *, first: optax.GradientTransformation | None = None, parts: Parts | None = None
) -> InPlace:
    """Returns the rule of `first` and then `rule`, as optax chains them.

    `rule` makes each update from the same element of gradient, state and weight, and from what all leaves share (AdamW
    under a schedule). `first` sees the whole gradient and keeps nothing (a clip to a global norm). Nothing here can
    check that: another rule would get rows of a leaf where it needs all of it.
    """
    whole = rule if first is None else optax.chain(first, rule)

    def apply(gradient: Any, state: Any, params: Any) -> tuple[Any, Any]:
        if not any(map(on_host, jax.tree.leaves(state))):
            updates, state = whole.update(gradient, state, params)
            return optax.apply_updates(params, updates), state
        if first is None:
            return _streamed(rule, gradient, state, params)
        gradient, kept = first.update(gradient, state[0], params)
        params, state = _streamed(rule, gradient, state[1], params)
        return params, (kept, state)

    return InPlace(whole.init, whole.update, apply, lambda params: params, parts)


def clipped(rule: optax.GradientTransformation, clip_norm: float | None) -> InPlace:
    """Returns an elementwise rule after a clip to a global norm, streamed, and updated in parts of the parameters.

    None or 0 is no clip.
    """
    if not clip_norm:
        return streaming(rule, parts=elementwise(rule, clip_norm=None))
    unclipped = optax.chain(optax.identity(), rule)  # with the state of the clipped one
    parts = elementwise(unclipped, clip_norm=clip_norm)
    return streaming(rule, first=clip_by_norm(clip_norm), parts=parts)


def _streamed(rule: optax.GradientTransformation, gradient: Any, state: Any, params: Any) -> tuple[Any, Any]:
    weights, tree = jax.tree.flatten(params)
    gradients = tree.flatten_up_to(gradient)
    held, held_tree = jax.tree.flatten(state)
    numbers = tree.unflatten(range(len(weights)))
    marked = optax.tree_map_params(rule, lambda _, at: at, state, numbers, transform_non_params=lambda _: SHARED)
    owners: list[int] = jax.tree.leaves(marked)

    def update(at: int, weight: Any, slope: Any, own: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Updates rows of one leaf, the others left out: a mask by path still finds its own."""

        def alone(x: Any) -> Any:
            return tree.unflatten([x if number == at else None for number in range(len(weights))])

        parts = iter(own)
        partial = [x if of == SHARED else next(parts) if of == at else None for x, of in zip(held, owners, strict=True)]
        updates, new = rule.update(alone(slope), held_tree.unflatten(partial), alone(weight))
        new_weight = jax.tree.leaves(optax.apply_updates(alone(weight), updates))
        return new_weight, held_tree.flatten_up_to(new)

    new_weights = list(weights)
    _, new_held = update(SHARED, None, None, ())
    for at, (weight, slope) in enumerate(zip(weights, gradients, strict=True)):
        places = [place for place, of in enumerate(owners) if of == at]

        def change(changed: Any, read: Array, at: int = at, places: Sequence[int] = tuple(places)) -> Any:
            (weight,), new = update(at, changed["weight"], read, changed["own"])
            return {"weight": weight, "own": [new[place] for place in places]}

        changed = {"weight": weight, "own": [held[place] for place in places]}
        streams = any(map(on_host, changed["own"]))
        changed = on_own_part(partial(over_host_pieces, change), changed, slope) if streams else change(changed, slope)
        new_weights[at] = changed["weight"]
        for place, x in zip(places, changed["own"], strict=True):
            new_held[place] = x
    return tree.unflatten(new_weights), held_tree.unflatten(new_held)
