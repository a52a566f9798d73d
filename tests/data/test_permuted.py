"""The position of a permuted data set is its epoch and its place in it, and both are restored."""

import itertools
import json

import grain
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypotheses import examples
from plimsoll.data.batch_source import BatchSource, Permuted, PermutedBatches
from plimsoll.data.permutation import AT_ONCE, LEAST_BITS, Order
from plimsoll.errors import DataError

COUNT = 5


def permuted(count=COUNT, **options):
    return iter(Permuted(range(count), size={"examples": count}, **{"seed": 7, **options}))


@pytest.mark.parametrize("taken", [0, 3, COUNT, COUNT + 2, 3 * COUNT + 4])
def test_from_every_epoch_the_items_after_it_follow(taken):
    uninterrupted = list(itertools.islice(permuted(), taken + 2 * COUNT))
    stopped, resumed = permuted(), permuted()
    list(itertools.islice(stopped, taken))
    state = json.loads(json.dumps(stopped.get_state()))
    assert state == {"epoch": taken // COUNT, "index": taken % COUNT, "examples": COUNT}
    resumed.set_state(state)
    assert list(itertools.islice(resumed, 2 * COUNT)) == uninterrupted[taken:]


def test_a_set_restored_in_its_last_epoch_ends_after_it():
    resumed = permuted(epochs=2)
    resumed.set_state({"epoch": 1, "index": 3, "examples": COUNT})
    assert len(list(resumed)) == 2


def test_a_position_in_a_set_of_another_size_is_refused():
    with pytest.raises(DataError, match="saved for 6 examples, and the data set has 5"):
        permuted().set_state({"epoch": 0, "index": 0, "examples": 6})


SIZES = st.one_of(
    st.integers(1, 300),
    st.sampled_from([4_096, 2**LEAST_BITS - 1, 2**LEAST_BITS, 2**LEAST_BITS + 2, 2**17 + 1, 2**18, 2**18 + 2, 10**9]),
)


@settings(max_examples=examples(20), deadline=None)
@given(count=SIZES, seed=st.integers(0, 2**40), epoch=st.integers(0, 2**33), data=st.data())
def test_the_order_of_an_epoch_is_that_of_grain(count, seed, epoch, data):
    """Positions of runs that were saved with Grain's own shuffle keep their meaning."""
    place = data.draw(st.integers(0, count - 1))
    theirs = grain.MapDataset.range(count).shuffle(seed=seed % 2**31).repeat()
    ours = Order(count, seed).after(epoch, place)
    assert len(ours) == (count - place if count <= 2**LEAST_BITS else min(count - place, AT_ONCE - place % AT_ONCE))
    assert ours[:8].tolist() == [theirs[epoch * count + place + at] for at in range(len(ours[:8]))]


@pytest.mark.parametrize("count", [7, 2**LEAST_BITS, 2**LEAST_BITS + 1, 2**LEAST_BITS + 2])
def test_an_epoch_holds_every_item_once(count):
    """Grain's shuffle misses one item of 65,537, which do not fit into its block of 16 bits, and has another twice."""
    order, found = Order(count, 3), np.zeros(0, int)
    while len(found) < count:
        found = np.concatenate([found, order.after(5, len(found))])
    assert np.bincount(found, minlength=count).tolist() == [1] * count


@settings(max_examples=examples(20), deadline=None)
@given(
    count=st.integers(1, 40),
    batch_size=st.integers(1, 50),
    taken=st.integers(0, 6),
    seed=st.one_of(st.none(), st.integers(0, 2**40)),
    prefetch=st.sampled_from([0, 2]),
)
def test_batches_hold_the_items_of_the_one_by_one_order_and_their_positions(count, batch_size, taken, seed, prefetch):
    """A run that was saved by the one continues with the other, wherever it stopped, ends of epochs included."""
    size = {"examples": count}
    singly = BatchSource(Permuted(range(count), size=size, seed=seed).batch(batch_size, drop_remainder=True))

    def together():
        read = PermutedBatches(lambda at: at, count, batch_size=batch_size, size=size, seed=seed)
        return BatchSource(read, prefetch=prefetch)

    first = together()
    for _ in range(taken):
        assert next(first).tolist() == next(singly).tolist()
    state = json.loads(json.dumps(first.state()))
    assert state == singly.state()
    resumed = together()
    resumed.restore(state)
    for _ in range(3):
        assert next(resumed).tolist() == next(singly).tolist()
    first.close()
    resumed.close()


def test_a_batch_that_could_not_be_read_is_read_again():
    failures = iter([OSError("a disk that stalls")])

    def read(indices):
        if problem := next(failures, None):
            raise problem
        return indices

    batches = iter(PermutedBatches(read, COUNT, batch_size=2, size={}, seed=None))
    with pytest.raises(OSError, match="stalls"):
        next(batches)
    assert [next(batches).tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 0]]
