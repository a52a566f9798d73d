"""Batches that are put ahead: in their order, a bounded number of them, with the position of what was taken."""

import threading
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from plimsoll.errors import DataError
from plimsoll.levers import sharding
from plimsoll.training.on_device import AHEAD, OnDevice
from plimsoll.training.program import Functions


class Numbers:
    """Batches 0, 1, 2, ...; the position is the number of the next one."""

    def __init__(self, bad=None):
        self.at, self.bad, self.closed = 0, bad, False

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == self.bad:
            raise DataError("the text ends")
        self.at += 1
        return {"x": np.full(2, self.at - 1)}

    def state(self):
        return {"at": self.at}

    def restore(self, state):
        self.at = state["at"]

    def close(self):
        self.closed = True


@pytest.fixture
def putting():
    """A source whose `put` is counted, and waits where `stopped` is cleared."""
    opened = []

    def make(source):
        put, go = [], threading.Event()
        go.set()

        def put_one(batch):
            assert go.wait(20)
            put.append(int(batch["x"][0]))
            return {name: ("on the device", values) for name, values in batch.items()}

        opened.append(OnDevice(source, put_one))
        return opened[-1], put, go

    yield make
    for source in opened:
        source.close()


def number(batch):
    where, values = batch["x"]
    assert where == "on the device"
    return int(values[0])


def test_batches_come_in_order_with_the_position_after_the_last_that_was_taken(putting):
    source, _, _ = putting(Numbers())
    assert source.state() == {"at": 0}
    for at in range(10):
        assert number(next(source)) == at
        assert source.state() == {"at": at + 1}


def test_so_many_are_put_before_they_are_wanted_and_no_more(putting):
    numbers = Numbers()
    source, put, go = putting(numbers)
    next(source)
    source._thread.submit(lambda: None).result(20)  # after what was under way
    assert put == list(range(1 + AHEAD))
    go.clear()
    assert [number(next(source)) for _ in range(AHEAD)] == list(range(1, 1 + AHEAD))
    assert put == list(range(1 + AHEAD))
    go.set()


def test_a_restored_position_drops_what_was_put(putting):
    source, _, _ = putting(Numbers())
    for _ in range(4):
        next(source)
    source.restore({"at": 1})
    assert source.state() == {"at": 1}
    assert [number(next(source)) for _ in range(3)] == [1, 2, 3]


def test_an_error_comes_after_the_batches_before_it(putting):
    source, _, _ = putting(Numbers(bad=2))
    assert [number(next(source)) for _ in range(2)] == [0, 1]
    with pytest.raises(DataError, match="the text ends"):
        next(source)
    assert source.state() == {"at": 2}


def test_a_batch_that_is_split_over_devices_already_stays_as_it_is():
    functions = SimpleNamespace(mesh=sharding.mesh_of(jax.devices()[:1], fsdp=1))
    put = Functions.put(functions, {"x": np.arange(4, dtype=np.int32)})
    assert put["x"].sharding.spec == sharding.ROWS
    again = Functions.put(functions, put)
    assert again["x"] is put["x"]


def test_closing_ends_the_thread_and_then_the_source():
    numbers = Numbers()
    before = threading.active_count()
    source = OnDevice(numbers, dict)
    next(source)
    assert threading.active_count() == before + 1
    source.close()
    assert numbers.closed
    assert threading.active_count() == before
