"""Two levels of softmax: one distribution over the items, and in its limits the full one."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from item_examples import ITEMS, shape_of, uneven_clusters
from plimsoll.levers.chunked_loss import chunked_sum
from plimsoll.recipes.recommend.items import NO_ITEM, Items, members_of
from plimsoll.types import IGNORE, Compute

STRICT = True

ROWS = 11


ROUND_ROBIN = np.r_[-1, np.arange(ITEMS) % shape_of().clusters].astype(np.int32)


def example(cluster_of=ROUND_ROBIN, **changed):
    """The items, their vectors, what is fixed, and outputs of a reader."""
    items = Items(shape_of(**changed), Compute())
    keys = jax.random.split(jax.random.key(0), 2)
    params = jax.tree.map(lambda leaf: leaf * 5, jax.jit(items.init)(keys[0]))  # probabilities far from even
    fixed = {}
    if items.shape.two_level:
        fixed = members_of(cluster_of, items.shape)
    return items, items.vectors(params), fixed, jax.random.normal(keys[1], (ROWS, 32))


CLUSTERED = {
    "round robin": ROUND_ROBIN,
    "uneven, two of them of one item": uneven_clusters(),
    "one is empty": np.concatenate([[-1], np.repeat([0, 2, 3, 4], [12, 9, 8, 1])]).astype(np.int32),
}


@pytest.mark.parametrize("clusters", CLUSTERED)
def test_probabilities_of_all_items_sum_to_one_and_padding_has_none(clusters):
    items, vectors, fixed, hidden = example(CLUSTERED[clusters])
    found = np.asarray(jax.jit(items.log_probabilities)(hidden, vectors, fixed), np.float64)
    assert found.shape == (ROWS, ITEMS + 1)
    assert (found[:, 0] == -np.inf).all()
    np.testing.assert_allclose(np.exp(found).sum(axis=1), 1, rtol=1e-5)
    assert np.ptp(found[:, 1:], axis=1).min() > 1  # it is no even distribution that sums to one


@pytest.mark.parametrize("changed", [{"two_level": False}, {}], ids=str)
@pytest.mark.parametrize("chunk", [0, 4])
def test_the_loss_is_minus_the_log_of_that_score(chunk, changed):
    items, vectors, fixed, hidden = example(uneven_clusters(), **changed)
    labels = jnp.array([1, 12, 13, 14, IGNORE, 22, 23, 29, 30, IGNORE, 5])  # 13 and 30 are alone in their clusters
    how = {"rule": items.nats, "fixed": fixed, "chunk": chunk}
    found = jax.jit(partial(chunked_sum, **how))(hidden, vectors, labels)
    scores = np.asarray(jax.jit(items.log_probabilities)(hidden, vectors, fixed))
    expected = -sum(scores[row, label] for row, label in enumerate(labels) if label != IGNORE)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_an_item_that_is_alone_in_its_cluster_is_as_likely_as_the_cluster():
    items, vectors, fixed, hidden = example(uneven_clusters())
    found = jax.jit(items.log_probabilities)(hidden, vectors, fixed)
    clusters = jax.nn.log_softmax(hidden @ vectors["clusters"].T)
    np.testing.assert_allclose(found[:, 13], clusters[:, 1], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[:, 30], clusters[:, 4], rtol=1e-5, atol=1e-5)


def gradients(items, fixed):
    """Of the loss in chunks, for outputs and vectors."""
    return jax.jit(jax.grad(partial(chunked_sum, rule=items.nats, fixed=fixed, chunk=4), argnums=(0, 1)))


def test_with_one_cluster_it_is_the_full_softmax():
    full, full_vectors, _, hidden = example(two_level=False)
    two, vectors, fixed, _ = example(np.r_[-1, np.zeros(ITEMS)].astype(np.int32), clusters=1, largest_cluster=ITEMS)
    np.testing.assert_array_equal(vectors["items"], full_vectors["items"])
    expected = jax.jit(full.log_probabilities)(hidden, full_vectors, {})
    found = jax.jit(two.log_probabilities)(hidden, vectors, fixed)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)

    labels = jnp.arange(1, ROWS + 1)
    of_two = gradients(two, fixed)(hidden, vectors, labels)[0]
    of_full = gradients(full, {})(hidden, full_vectors, labels)[0]
    np.testing.assert_allclose(of_two, of_full, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("clusters", CLUSTERED)
def test_gradients_are_finite_where_clusters_are_filled_up(clusters):
    items, vectors, fixed, hidden = example(CLUSTERED[clusters])
    labels = jnp.array([1, 12, 13, 14, IGNORE, 22, 23, 29, 30, IGNORE, 5])
    found = gradients(items, fixed)(hidden, vectors, labels)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))


def test_every_item_has_one_place_among_the_members():
    shape = shape_of()
    for fixed in map(jax.device_get, (members_of(uneven_clusters(), shape), members_of(ROUND_ROBIN, shape))):
        members, item = fixed["members"], np.arange(1, ITEMS + 1)
        np.testing.assert_array_equal(members[fixed["cluster"][1:], fixed["place"][1:]], item)
        assert sorted(members[members != NO_ITEM].tolist()) == item.tolist()
