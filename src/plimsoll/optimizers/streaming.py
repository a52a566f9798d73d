"""Elementwise rules of optax on some rows of one leaf at a time: layer by layer, or over a state in host memory.

levers/offload.py says why a state lies there, and what it costs. The update is optax's own, called on rows of one leaf
while the others are left out, so the numbers and the state are the same as those of a whole update.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from plimsoll.levers.offload import on_host, over_host_pieces
from plimsoll.optimizers.in_place import InPlace, Layer, Parts, Trees, over_layer, without
from plimsoll.optimizers.norm import clip_by_norm
from plimsoll.optimizers.shards import on_own_part


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


class _Update:
    """An elementwise update of parameters and state, of which rows of one leaf can be made alone."""

    def __init__(self, rule: optax.GradientTransformation, trees: Trees) -> None:
        self.rule = rule
        structure = jax.tree.structure(trees[0])
        self.nodes, self.form = jax.tree.flatten(trees, is_leaf=lambda node: jax.tree.structure(node) == structure)
        """Trees with the parameters' structure, those first, and the leaves outside of them, which all share."""
        self.own = [place for place, node in enumerate(self.nodes) if jax.tree.structure(node) == structure]

    def of(self, own: list[Any], gradient: Any) -> list[Any]:
        """Returns all nodes after the update of a part of the parameters: `own` holds it of each of their trees."""
        before = list(self.nodes)
        for place, part in zip(self.own, own, strict=True):
            before[place] = part
        weights, state = self.form.unflatten(before)
        updates, state = self.rule.update(gradient, state, weights)
        return self.form.flatten_up_to((optax.apply_updates(weights, updates), state))

    def of_rows(self, alone: Callable[[Any], Any], rows: list[Array], gradient: Array) -> list[Array]:
        """Returns new rows of one leaf; `alone` gives the tree that has nothing else: a mask by path still finds it."""
        after = self.of([alone(part) for part in rows], alone(gradient))
        return [jax.tree.leaves(after[place])[0] for place in self.own]


def _alone(form: Any, number: int, part: Any) -> Any:
    """Returns a tree of this form with one leaf, and None for all others."""
    return form.unflatten([part if place == number else None for place in range(form.num_leaves)])


def elementwise(optimizer: optax.GradientTransformation, *, clip_norm: float | None) -> Parts:
    """Returns the `Parts` of an optax transformation that treats each element alone, as Adam does; without its clip.

    Trees of its state with the parameters' own structure are cut as they are; everything else (counts) is shared.
    """

    def layer(trees: Trees, gradient: Any, at: Layer, clip: Array, token: Array) -> tuple[Trees, Array]:
        update = _Update(optimizer, trees)
        slopes, form = jax.tree.flatten(gradient)
        held = [form.flatten_up_to(update.nodes[place][at.stacked]) for place in update.own]

        # One leaf after the other.
        for number, slope in enumerate(slopes):

            def change(start: Array, rows: list[Array], read: Array, number: int = number) -> list[Array]:
                del start
                alone = lambda part: {at.stacked: _alone(form, number, part)}  # noqa: E731
                return update.of_rows(alone, rows, clip * read.astype(jnp.float32))

            before = [leaves[number] for leaves in held]
            after, token = over_layer(change, before, slope, at.number, token)
            for leaves, leaf in zip(held, after, strict=True):
                leaves[number] = leaf

        nodes = list(update.nodes)
        for place, leaves in zip(update.own, held, strict=True):
            nodes[place] = nodes[place] | {at.stacked: form.unflatten(leaves)}
        return update.form.unflatten(nodes), token

    def rest(trees: Trees, gradient: Any, stacked: str, clip: Array) -> Trees:
        update = _Update(optimizer, trees)
        others = [without(update.nodes[place], stacked) for place in update.own]
        after = update.of(others, jax.tree.map(lambda leaf: clip * leaf.astype(jnp.float32), gradient))
        for place in update.own:
            after[place] = update.nodes[place] | after[place]
        return update.form.unflatten(after)

    return Parts(clip_norm, layer, rest)


def _streamed(rule: optax.GradientTransformation, gradient: Any, state: Any, params: Any) -> tuple[Any, Any]:
    update = _Update(rule, (params, state))
    slopes, form = jax.tree.flatten(gradient)
    held = [form.flatten_up_to(update.nodes[place]) for place in update.own]

    # What all leaves share, then one leaf after the other.
    nothing = _alone(form, -1, None)
    after = update.of([nothing for _ in update.own], nothing)
    for number, slope in enumerate(slopes):
        change = partial(update.of_rows, partial(_alone, form, number))
        leaf = [leaves[number] for leaves in held]
        if any(map(on_host, leaf)):
            leaf = on_own_part(partial(over_host_pieces, change), leaf, slope)
        else:
            leaf = change(leaf, slope)
        for leaves, new in zip(held, leaf, strict=True):
            leaves[number] = new
    for place, leaves in zip(update.own, held, strict=True):
        after[place] = form.unflatten(leaves)
    return update.form.unflatten(after)
