# ruff: noqa: E501 (a case is a line)
"""A user's own data: every epoch holds every example once, in another order; what is no data set is refused."""

import itertools
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypotheses import examples
from plimsoll.data.examples import HANDED_OVER, Examples
from plimsoll.data.loader import Order
from plimsoll.errors import DataError
from plimsoll.types import COUNTED


def numbered(count):
    return Examples([{"n": n} for n in range(count)], called="the data")


def drawn(count, *, batch_size, batches, **options):
    loader = numbered(count).loader(batch_size=batch_size, prefetch=0, **options)
    return np.concatenate([batch["n"] for batch in itertools.islice(loader, batches)]).tolist()


def test_every_epoch_holds_every_example_once_in_an_order_that_the_seed_decides():
    """The end of one epoch and the beginning of the next may be in one batch."""
    rows = drawn(30, batch_size=20, batches=3, seed=1)
    assert sorted(rows[:30]) == sorted(rows[30:]) == list(range(30))
    assert rows == [*Order(30, 1).of_epoch(0).copy(), *Order(30, 1).of_epoch(1)]
    assert drawn(4, batch_size=3, batches=2, seed=1, shuffle=False) == [0, 1, 2, 3, 0, 1]


@settings(max_examples=examples(20), deadline=None)
@given(count=st.integers(1, 30), batch_size=st.integers(1, 9))
def test_validation_counts_every_example_once_in_batches_of_one_shape(count, batch_size):
    batches = list(numbered(count).counted(batch_size))
    assert {len(batch["n"]) for batch in batches} == {batch_size}
    assert np.concatenate([batch["n"][batch[COUNTED]] for batch in batches]).tolist() == list(range(count))


def test_64_bits_become_32_and_the_names_of_arrays_those_of_rows():
    examples = Examples({"x": np.ones((3, 2)), "y": [1, 2, 3], "z": np.ones((3, 1), np.uint8)}, called="the data")
    assert examples.spec == {"x": ((2,), "float32"), "y": ((), "int32"), "z": ((1,), "uint8")}
    assert [value.dtype.name for value in examples[2].values()] == ["float32", "int32", "uint8"]


@settings(max_examples=examples(20), deadline=None)
@given(
    count=st.integers(1, 20),
    batch_size=st.integers(1, 9),
    shape=st.sampled_from([(), (3,), (2, 1)]),
    dtype=st.sampled_from(["float64", "float32", "int64", "uint8", "bool", "complex128"]),
)
def test_batches_of_arrays_are_those_of_their_examples_one_by_one(count, batch_size, shape, dtype):
    values = (np.arange(count * int(np.prod(shape))).reshape(count, *shape) * 1.1).astype(dtype)
    together = Examples({"x": values, "n": np.arange(count)}, called="the data")
    singly = Examples([{"x": values[n], "n": n} for n in range(count)], called="the data")
    options = {"batch_size": batch_size, "seed": 3, "prefetch": 0}
    pairs = [
        *itertools.islice(zip(together.loader(**options), singly.loader(**options), strict=True), 4),
        *zip(together.counted(batch_size), singly.counted(batch_size), strict=True),
    ]
    for ours, theirs in pairs:
        assert list(ours) == list(theirs)
        for name in ours:
            np.testing.assert_array_equal(ours[name], theirs[name], strict=True)


def test_too_large_a_number_in_a_batch_is_named_with_its_example():
    data = Examples({"x": np.array([1, 2, 2**31, 4])}, called="the data")
    with pytest.raises(DataError, match="'x' of example 2 has 2,147,483,648, and the largest"):
        next(data.loader(batch_size=4, seed=0, prefetch=0))


def test_arrays_of_objects_are_read_one_by_one():
    ragged = np.empty(2, object)
    ragged[:] = [np.ones(3), np.zeros(3)]
    (batch,) = Examples({"x": ragged}, called="the data").counted(2)
    assert batch["x"].tolist() == [[1, 1, 1], [0, 0, 0]]


def test_a_thread_reads_ahead_what_takes_longer_than_its_hand_over(tmp_path):
    """Small rows in memory have none: their reader would wait for it longer than for them."""
    rows = np.ones((8, 4), np.float32)
    np.save(tmp_path / "x.npy", rows)
    many_bytes = np.ones((8, HANDED_OVER // 16), np.float32)
    on_disk = np.load(tmp_path / "x.npy", mmap_mode="r")
    threads = []
    for data in ({"x": rows}, {"x": many_bytes}, {"x": on_disk}, [{"x": row} for row in rows]):
        before = threading.active_count()
        loader = Examples(data, called="the data").loader(batch_size=8, seed=1, prefetch=2)
        next(loader)
        threads.append(threading.active_count() - before)
        loader.close()
    assert threads == [0, 1, 1, 1]


def test_what_lies_on_disk_is_counted_as_what_it_will_be_in_memory(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((5, 4), np.float32))
    on_disk = Examples({"x": np.load(tmp_path / "x.npy", mmap_mode="r")}, called="the data")
    assert on_disk.held_bytes(training=False) == 80
    assert on_disk.held_bytes(training=True) == 80 + 5 * 8  # and its order
    assert Examples({"x": np.ones((5, 4))}, called="the data").held_bytes(training=False) == 0


ODD = {
    "a generator": ((row for row in [{"x": 1}]), "is a generator, which has no len()"),
    "nothing": ([], "the data is empty"),
    "arrays of no rows": ({"x": np.zeros((0, 2))}, "the data is empty"),
    "no arrays": ({}, "it has none"),
    "unequal arrays": ({"x": np.zeros(3), "y": np.zeros(2)}, "unequal lengths (x 3, y 2)"),
    "a number among arrays": ({"x": np.zeros(3), "y": 1.0}, "(x 3, y no rows)"),
    "tuples": ([(1, 2)], "example 0 is a tuple: it must be a dict"),
    "words": ([{"x": "word"}], "'x' of example 0 is a str, not numbers"),
    "unequal names": ([{"x": 1}, {"y": 1}], "example 1 has y int32, and the first one x int32"),
    "unequal shapes": ([{"x": np.zeros(2)}, {"x": np.zeros(3)}], "example 1 has x float32[3], and the first one x float32[2]"),
    "unequal types": ([{"x": 1}, {"x": 1.5}], "example 1 has x float32, and the first one x int32"),
    "too large a number": ([{"x": 2**31}], "has 2,147,483,648, and the largest that a int32 holds is 2,147,483,647"),
    "a name that is taken": ([{COUNTED: 1}], "the name 'counted' is taken"),
}  # fmt: skip


@pytest.mark.parametrize("case", ODD)
def test_what_is_no_data_set_is_refused(case):
    data, words = ODD[case]
    with pytest.raises(DataError) as refused:
        [Examples(data, called="the data")[index] for index in range(2)]
    assert words in str(refused.value)
