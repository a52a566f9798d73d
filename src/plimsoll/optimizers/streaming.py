"""Applies elementwise rules of optax to some rows of one leaf at a time: layer by layer, or with state in host memory.

levers/offload.py explains state in host memory. The update is optax's own, called with rows of one leaf while all other
leaves are None, so results and state equal those of a whole update.
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
    """Returns `first` and then `rule`, as optax chains them, for a state that may lie in host memory.

    Args:
        rule: Elementwise rule, like AdamW under a schedule: an update depends on one element of gradient, state and
            weight, and on shared numbers like a count. This is not checked: another rule would give wrong results.
        first: Stateless rule for the whole gradient, applied before `rule`, like a clip to a global norm.
        parts: Updates of parts of the parameters, like single layers.
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
    """Returns a clip to a global norm followed by an elementwise rule, which can stream state and update in parts.

    A `clip_norm` of None or 0 does not clip.
    """
    if not clip_norm:
        return streaming(rule, parts=elementwise(rule, clip_norm=None))
    unclipped = optax.chain(optax.identity(), rule)  # its state has the structure of the clipped rule's state
    parts = elementwise(unclipped, clip_norm=clip_norm)
    return streaming(rule, first=clip_by_norm(clip_norm), parts=parts)


class _Update:
    """An elementwise update of parameters and state that can update a few rows of one leaf."""

    def __init__(self, rule: optax.GradientTransformation, trees: Trees) -> None:
        self.rule = rule
        structure = jax.tree.structure(trees[0])
        self.nodes, self.form = jax.tree.flatten(trees, is_leaf=lambda node: jax.tree.structure(node) == structure)
        """The parameters, trees of the state with their structure (moments), and other leaves of the state (counts)."""
        self.own = [place for place, node in enumerate(self.nodes) if jax.tree.structure(node) == structure]

    def of(self, own: list[Any], gradient: Any) -> list[Any]:
        """Returns `nodes` after an update of some parameters. `own` has these parameters and their moments."""
        before = list(self.nodes)
        for place, part in zip(self.own, own, strict=True):
            before[place] = part
        weights, state = self.form.unflatten(before)
        updates, state = self.rule.update(gradient, state, weights)
        return self.form.flatten_up_to((optax.apply_updates(weights, updates), state))

    def of_rows(self, alone: Callable[[Any], Any], rows: list[Array], gradient: Array) -> list[Array]:
        """Returns updated rows of a leaf. `alone` puts rows into a tree at the leaf's path: masks depend on it."""
        after = self.of([alone(part) for part in rows], alone(gradient))
        return [jax.tree.leaves(after[place])[0] for place in self.own]


def _alone(form: Any, number: int, part: Any) -> Any:
    """Returns a tree with the structure `form`, `part` as the leaf with index `number`, and None for all others."""
    return form.unflatten([part if place == number else None for place in range(form.num_leaves)])


def elementwise(optimizer: optax.GradientTransformation, *, clip_norm: float | None) -> Parts:
    """Returns the `Parts` of an elementwise optax transformation, like Adam without its clip.

    Trees of the state with the parameters' structure (moments) are split like the parameters. All parts share the other
    leaves (counts).
    """

    def layer(trees: Trees, gradient: Any, at: Layer, clip: Array, token: Array) -> tuple[Trees, Array]:
        update = _Update(optimizer, trees)
        slopes, form = jax.tree.flatten(gradient)
        held = [form.flatten_up_to(update.nodes[place][at.stacked]) for place in update.own]

        # Update one leaf after another.
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

    # Update shared leaves (counts), then one leaf after another.
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
