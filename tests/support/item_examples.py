"""Small models of items, for tests of several files."""

import jax
import jax.numpy as jnp
import numpy as np

from plimsoll.models.shape import DecoderShape
from plimsoll.recipes.recommend.item_reader import PublishedReader, Side, SmallReader
from plimsoll.recipes.recommend.item_shape import ItemShape
from plimsoll.recipes.recommend.next_item import NextItem
from plimsoll.types import Compute

LLAMA = DecoderShape(
    architecture="llama", vocab=90, width=32, layers=2, heads=4, key_heads=2, head_width=8, inner=72, norm_epsilon=1e-5
)
DECODER = DecoderShape(vocab=1, width=32, layers=2, heads=2, inner=64)
BESIDE = DecoderShape(vocab=1, width=16, layers=2, heads=2, inner=32)
"""Of the transformer beside the Llama: as wide as an item."""
ITEMS = 30


def shape_of(**changed):
    sizes = {"items": ITEMS, "item_width": 16, "inner": 24, "width": 32, "clusters": 5, "largest_cluster": 12}
    return ItemShape(**sizes | changed)


def task_of(*, published=False, frozen=True, side=False, compute=None, **changed):
    compute, shape = compute or Compute(), shape_of(**changed | {"direct": side})
    if side:
        beside = Side(BESIDE, compute, width=LLAMA.width, dropout=shape.dropout)
        return NextItem(shape, PublishedReader(LLAMA, compute, frozen=True), compute, side=beside)
    if published:
        return NextItem(shape, PublishedReader(LLAMA, compute, frozen=frozen), compute)
    return NextItem(shape, SmallReader(DECODER, compute, dropout=shape.dropout), compute)


def uneven_clusters():
    """Of 30 items: twelve, one, nine, seven and one; -1 for padding."""
    return np.concatenate([[-1], np.repeat([0, 1, 2, 3, 4], [12, 1, 9, 7, 1])]).astype(np.int32)


def histories(rows=6, length=8, seed=0, items=ITEMS):
    """`length + 1` ids a row, padded on the right; every row has two items or more, none twice."""
    random = np.random.default_rng(seed)
    found = np.zeros((rows, length + 1), np.int32)
    for row in found:
        size = random.integers(2, length + 2)
        row[:size] = 1 + random.permutation(items)[:size]
    return found


def keys_of(rows):
    return jax.vmap(jax.random.key)(jnp.arange(rows, dtype=jnp.uint32))
