"""AdamW over 8- or 16-bit moments and 16-, 24- or 32-bit weights, updated in place.

It equals `optax.adamw` except for rounding between steps: a piece of a leaf is decoded, updated in float32 with the new
moments, and encoded again (levers/eight_bit.py, levers/weight_bits.py). Gradients may be float32 or bfloat16.

`bits_of` returns the bits of each leaf. Norms, biases and small leaves stay float32. If moments have 8 bits, moments of
embeddings and the output layer stay float32, too. Moments of 16 bits are bfloat16, rounded at random
(levers/weight_bits.py): an update changes them by less than the spacing of bfloat16 numbers, so rounding to the nearest
would leave them unchanged.

`build` returns the rule of `plimsoll.AdamW`: with 32 bits everywhere it is optax's own AdamW.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from plimsoll.errors import RecipeError
from plimsoll.levers import eight_bit, weight_bits
from plimsoll.levers.eight_bit import BLOCK, Blocks
from plimsoll.optimizers.in_place import (
    PIECE,
    InPlace,
    Layer,
    Parts,
    Trees,
    over_layer,
    over_pieces,
    without,
)
from plimsoll.optimizers.norm import global_norm, shrinking
from plimsoll.optimizers.settings import EMBEDDINGS, decayed, words_of
from plimsoll.optimizers.shards import Split
from plimsoll.optimizers.streaming import clipped
from plimsoll.types import NORMS_AND_BIASES, WHOLE, Storage

SMALLEST = 4096
"""A leaf with fewer elements stays float32, because it is too small to save much."""


class Adam(NamedTuple):
    """Hyperparameters of AdamW in a run."""

    schedule: optax.Schedule
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    clip_norm: float | None
    """Largest global norm of the gradient; None for no clipping."""


class Moments(NamedTuple):
    """State of one leaf between steps."""

    mean: Array | Blocks
    """Running mean of the gradient. With 16 bits it is stored as the bits of bfloat16 (uint16)."""
    variance: Array | Blocks
    """Running mean of the gradient's square. `Blocks` store its square root."""
    rest: Array | None
    """Difference between 24-bit weights and their bfloat16 part: int8, shaped like the leaf. None for other weights."""


class State(NamedTuple):
    """State of the optimizer."""

    step: Array
    """Number of updates done, int32."""
    leaves: Any
    """Parameters' tree with `Moments` as leaves."""


class Numbers(NamedTuple):
    """Inputs of one update besides the leaf: float32 scalars, except `step` (int32)."""

    clip: Array
    """Factor by which the gradient is multiplied to clip it."""
    mean_scale: Array
    root_scale: Array
    """`mean_scale` and `root_scale` correct the bias of the mean and of the second moment's square root."""
    rate: Array
    step: Array


class Kind(NamedTuple):
    """Storage of one leaf: bits of its moments and weights, whether it has weight decay, and its index."""

    moments: int
    weight: int
    decays: bool
    number: int
    """Index of the leaf in the tree's order, which seeds its random numbers."""


def build(adam: Adam, storage: Storage = WHOLE) -> InPlace:
    """Returns AdamW's update rule for the bits in `storage`. If all are 32, it is optax's own AdamW."""
    if not storage.updates_whole:
        return adamw8(adam, storage)
    rule = optax.adamw(
        adam.schedule,
        b1=adam.beta1,
        b2=adam.beta2,
        eps=adam.epsilon,
        weight_decay=adam.weight_decay,
        mask=decayed,
    )
    return clipped(rule, adam.clip_norm)


def bits_of(path: tuple, leaf: Any, storage: Storage) -> tuple[int, int]:
    """Returns the bits of the moments (8, 16 or 32) and of the weights (16, 24 or 32) of a leaf at `path`.

    Only a large matrix of whole blocks of 64 has fewer than 32. `leaf` may be stored already: uint16 counts as a float.
    """
    words = words_of(path)
    large = leaf.size >= SMALLEST and leaf.size % BLOCK == 0
    real = jnp.issubdtype(leaf.dtype, jnp.floating) or leaf.dtype == jnp.uint16
    if not (large and real and leaf.ndim >= 2) or NORMS_AND_BIASES & words:
        return 32, 32
    whole = EMBEDDINGS & words and storage.optimizer_bits == 8
    return 32 if whole else storage.optimizer_bits, storage.weight_bits


def adamw8(adam: Adam, storage: Storage, *, piece: int = PIECE) -> InPlace:
    """Returns AdamW's rule for state or weights in fewer bits. It updates `piece` elements at a time; see `InPlace`.

    `store` keeps weights of 16 or 24 bits as the bits of bfloat16 (uint16), which every backend can update in place.
    `apply` and `update` also accept bfloat16 leaves; on a CPU each is then copied during its update.
    """
    rule = _Rule(adam, storage, piece)
    return InPlace(rule.init, rule.update, rule.apply, rule.store, Parts(adam.clip_norm, rule.layer, rule.rest))


class _Rule(NamedTuple):
    """The functions of `InPlace` and of its `Parts`."""

    adam: Adam
    storage: Storage
    piece: int

    def kinds(self, params: Any) -> Any:
        """Returns the `Kind` of each leaf."""
        numbers = iter(range(len(jax.tree.leaves(params))))
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf, decays: Kind(*bits_of(path, leaf, self.storage), decays, next(numbers)),
            params,
            decayed(params),
        )

    def init(self, params: Any) -> State:
        def moments_of(leaf: Array, kind: Kind) -> Moments:
            plain = partial(jnp.zeros, dtype=jnp.uint16 if kind.moments == 16 else jnp.float32)
            zeros = eight_bit.zeros if kind.moments == 8 else plain
            rest = weight_bits.split(_float32(leaf))[1] if kind.weight == 24 else None
            return Moments(zeros(leaf.shape), zeros(leaf.shape), rest)

        return State(jnp.int32(0), jax.tree.map(moments_of, params, self.kinds(params)))

    def store(self, params: Any) -> Any:
        def stored_leaf(leaf: Array, kind: Kind) -> Array:
            if kind.weight == 32:
                return leaf
            if kind.weight == 16:  # rounded to the nearest; only updates are rounded at random
                return weight_bits.as_bits(_float32(leaf).astype(jnp.bfloat16))
            return weight_bits.split(_float32(leaf))[0]

        return jax.tree.map(stored_leaf, params, self.kinds(params))

    def numbers(self, clip: Array, state: State) -> Numbers:
        count = state.step + 1
        power = count.astype(jnp.float32)
        return Numbers(
            clip=clip,
            mean_scale=1 / (1 - self.adam.beta1**power),
            root_scale=1 / jnp.sqrt(1 - self.adam.beta2**power),
            rate=jnp.asarray(self.adam.schedule(state.step), jnp.float32),
            step=count,
        )

    def each(
        self,
        now: Numbers,
        token: Array,
        stored: Any,
        moments_and_gradient_and_kinds: tuple[Any, Any, Any],
        layer: Array | None = None,
    ) -> tuple[Any, Any, Array]:
        """Updates every leaf, or its layer `layer`. Returns weights, moments and the next `token` (`over_pieces`)."""
        leaves, tree = jax.tree.flatten(stored)
        others = [tree.flatten_up_to(other) for other in moments_and_gradient_and_kinds]
        changed = []
        changed_moments = []
        for leaf, moments, gradient, kind in zip(leaves, *others, strict=True):
            rule = _Leaf(kind, now, self.adam, Split.of(leaf.shape), self.piece)
            update = rule.walk if layer is None else partial(rule.layer, index=layer)
            (leaf, moments), token = update(leaf, moments, gradient, token)
            changed.append(leaf)
            changed_moments.append(moments)
        return tree.unflatten(changed), tree.unflatten(changed_moments), token

    def apply(self, gradient: Any, state: State, stored: Any) -> tuple[Any, State]:
        most = self.adam.clip_norm
        clip = jnp.float32(1) if most is None else shrinking(global_norm(gradient), most)
        now = self.numbers(clip, state)
        changed, moments, _ = self.each(now, now.step, stored, (state.leaves, gradient, self.kinds(stored)))
        return changed, State(now.step, moments)

    def layer(self, trees: Trees, gradient: Any, at: Layer, clip: Array, token: Array) -> tuple[Trees, Array]:
        stored, state = trees
        name = at.stacked
        others = state.leaves[name], gradient, self.kinds(stored)[name]
        changed, moments, token = self.each(self.numbers(clip, state), token, stored[name], others, at.number)
        return (stored | {name: changed}, State(state.step, state.leaves | {name: moments})), token

    def rest(self, trees: Trees, gradient: Any, stacked: str, clip: Array) -> Trees:
        stored, state = trees
        now = self.numbers(clip, state)
        outer, *others = (without(tree, stacked) for tree in (stored, state.leaves, gradient, self.kinds(stored)))
        changed, moments, _ = self.each(now, now.step, outer, tuple(others))
        return stored | changed, State(now.step, state.leaves | moments)

    def update(self, gradient: Any, state: State, params: Any = None) -> tuple[Any, State]:
        if params is None:
            raise ValueError("AdamW needs the parameters: update(gradient, state, params)")
        new, state = self.apply(gradient, state, params)
        return jax.tree.map(lambda after, before: _float32(after) - _float32(before), new, params), state


class _Leaf:
    """The update of one leaf: the arithmetic for some rows, and loops over all rows."""

    def __init__(self, kind: Kind, now: Numbers, adam: Adam, split: Split, piece: int) -> None:
        self.kind = kind
        self.now = now
        self.adam = adam
        self.split = split
        self.piece = piece
        self.key = weight_bits.random_key(now.step, kind.number)

    def walk(self, leaf: Array, moments: Moments, gradient: Array, token: Array) -> tuple[tuple[Array, Moments], Array]:
        """Returns the leaf's next weights and moments, and a token (`over_pieces`) that depends on them."""
        stored = weight_bits.as_bits(leaf) if leaf.dtype == jnp.bfloat16 else leaf
        changed = stored, moments
        if leaf.size < SMALLEST or leaf.size % BLOCK:
            new, moments = self.rows(jnp.int32(0), changed, gradient)
        else:
            (new, moments), token = self.split.over_shards(self.blocks, changed, gradient, token)
        return (weight_bits.as_bfloat16(new) if leaf.dtype == jnp.bfloat16 else new, moments), token

    def layer(
        self, leaf: Array, moments: Moments, gradient: Array, token: Array, *, index: Array
    ) -> tuple[tuple[Array, Moments], Array]:
        """Updates one layer of a stacked leaf, whose `gradient` has no axis of layers. Returns the whole leaf.

        Random numbers and scales are the same as in an update of the whole leaf.
        """
        if (self.kind.moments, self.kind.weight) == (32, 32):
            return over_layer(self.rows, (leaf, moments), gradient, index, token)
        if gradient.size % BLOCK:
            raise RecipeError(
                f"a layer has {gradient.size:,} weights, which is no multiple of the quantisation block of {BLOCK}: a"
                " layerwise update of this model needs --optimizer-bits 32 and --weight-bits 32"
            )
        return self.blocks((leaf, moments), gradient, token, index=index)

    def blocks(self, changed: Any, gradient: Array, token: Array, *, index: Array | int = 0) -> tuple[Any, Array]:
        """Updates, piece by piece, a device's part of a leaf, or its layer `index`. The size is a multiple of 64."""
        size, rows = changed[0].size, gradient.size // BLOCK
        view = lambda x: x.reshape(-1, BLOCK) if x.size == size else x.reshape(-1)  # noqa: E731
        new, token = over_pieces(
            self.rows,
            jax.tree.map(view, changed),
            gradient.reshape(-1, BLOCK),
            rows=rows,
            piece=max(1, self.piece // BLOCK),
            token=token,
            first=index * rows,
        )
        return jax.tree.map(lambda x, was: x.reshape(was.shape), new, changed), token

    def rows(self, start: Array, changed: tuple[Array, Moments], gradient: Array) -> tuple[Array, Moments]:
        """Updates some rows of a leaf: `changed` has their weights and moments, `start` is the index of the first."""
        stored, moments = changed
        adam, now = self.adam, self.now

        # Apply the update of AdamW in float32.
        gradient = gradient.astype(jnp.float32) * now.clip
        mean, variance = moments.mean, moments.variance
        mean = eight_bit.decode_mean(*mean) if isinstance(mean, Blocks) else _float32(mean)
        mean = adam.beta1 * mean + (1 - adam.beta1) * gradient
        variance = jnp.square(eight_bit.decode_root(*variance)) if isinstance(variance, Blocks) else _float32(variance)
        variance = adam.beta2 * variance + (1 - adam.beta2) * jnp.square(gradient)
        root = jnp.sqrt(variance)
        direction = mean * now.mean_scale / (root * now.root_scale + adam.epsilon)
        weights = _float32(stored) if moments.rest is None else weight_bits.join(stored, moments.rest)
        if self.kind.decays:
            direction = direction + adam.weight_decay * weights
        return self.encoded(start, weights + -now.rate * direction, mean, variance, root)

    def encoded(self, start: Array, weights: Array, mean: Any, variance: Any, root: Array) -> tuple[Array, Moments]:
        """Returns weights and moments as they are stored.

        Random rounding depends on an element's place in the leaf, so it is the same for any number of devices.
        """
        random: Any = None
        elements: Any = None
        if self.kind.moments < 32 or self.kind.weight == 16:
            blocks = self.split.block_numbers(start + jnp.arange(weights.shape[0], dtype=jnp.int32)).astype(jnp.uint32)
            elements = blocks[:, None] * jnp.uint32(BLOCK) + jnp.arange(BLOCK, dtype=jnp.uint32)[None, :]
            random = weight_bits.random_bits(self.key, elements)
        rest = None
        if self.kind.weight == 24:
            weights, rest = weight_bits.split(weights)
        elif self.kind.weight == 16:
            weights = weight_bits.round_at_random(weights, random)
        if self.kind.moments == 8:
            mean = Blocks(*eight_bit.encode_mean(mean))
            variance = Blocks(*eight_bit.encode_root(root, random >> 16))  # the weights have used the low bits
        elif self.kind.moments == 16:
            mean = weight_bits.round_at_random(mean, weight_bits.random_bits(random, elements))
            variance = weight_bits.round_at_random(variance, random >> 16)
        return weights, Moments(mean, variance, rest)


def _float32(leaf: Array) -> Array:
    """Converts a leaf to float32. A uint16 leaf holds the bits of bfloat16."""
    return weight_bits.widen(leaf) if leaf.dtype == jnp.uint16 else leaf.astype(jnp.float32)
