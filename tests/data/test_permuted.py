"""Permuted examples: each once an epoch, in batches that go on exactly from every position."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypotheses import examples
from plimsoll.data.loader import Order, permuted
from plimsoll.data.loader_bytes import order_bytes
from plimsoll.errors import DataError

COUNT = 5


def numbers(count=COUNT, **options):
    """Batches that are the numbers of their examples."""
    options = {"batch_size": 2, "seed": 7, "prefetch": 0, "facts": {"examples": count}} | options
    return permuted(lambda indices: {"n": indices}, count, **options)


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("count", [1, 7, 2**16 + 1])
def test_an_epoch_holds_every_example_once_and_a_seed_gives_each_another_order(count, seed):
    order = Order(count, seed)
    epochs = [order.of_epoch(epoch).copy() for epoch in range(2)]
    for epoch in epochs:
        assert np.bincount(epoch, minlength=count).tolist() == [1] * count
    assert (epochs[0].tolist() == epochs[1].tolist()) == (seed is None or count == 1)
    assert order.of_epoch(0).tolist() == epochs[0].tolist()
    assert 2 * order.of_epoch(0).nbytes == order_bytes(count)


@settings(max_examples=examples(20), deadline=None)
@given(
    count=st.integers(1, 40),
    batch_size=st.integers(1, 50),
    taken=st.integers(0, 6),
    seed=st.one_of(st.none(), st.integers(0, 2**40)),
    prefetch=st.sampled_from([0, 2]),
)
def test_batches_follow_the_orders_of_the_epochs_from_every_position(count, batch_size, taken, seed, prefetch):
    order = Order(count, seed)
    size = (taken + 3) * batch_size
    expected = np.concatenate([order.of_epoch(epoch) for epoch in range(size // count + 1)])[:size]
    first = numbers(count, batch_size=batch_size, seed=seed, prefetch=prefetch)
    batches = [next(first)["n"] for _ in range(taken)]
    state = json.loads(json.dumps(first.state()))
    assert state == {"examples_before": taken * batch_size, "facts": {"examples": count}}
    resumed = numbers(count, batch_size=batch_size, seed=seed, prefetch=2 - prefetch)
    resumed.restore(state)
    batches += [next(resumed)["n"] for _ in range(3)]
    assert np.concatenate(batches).tolist() == expected.tolist()
    first.close()
    resumed.close()


def test_a_position_in_a_set_of_another_size_is_refused():
    with pytest.raises(DataError, match="saved for examples 6, and the data set has examples 5"):
        numbers().restore(numbers(6).state())


def test_a_batch_that_could_not_be_read_is_read_again():
    failures = iter([OSError("a disk that stalls")])

    def read(indices):
        if problem := next(failures, None):
            raise problem
        return {"n": indices}

    batches = permuted(read, COUNT, batch_size=2, seed=None, prefetch=0, facts={})
    with pytest.raises(OSError, match="stalls"):
        next(batches)
    assert [batch["n"].tolist() for batch in itertools.islice(batches, 3)] == [[0, 1], [2, 3], [4, 0]]
