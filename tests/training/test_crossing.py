"""Leaves that cross between processes, each a thread here: what arrives, and what is asked of nobody."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from types import SimpleNamespace

import jax
import ml_dtypes
import numpy as np
import pytest

from plimsoll.training import distributed
from plimsoll.training.crossing import Crossing
from told import PATIENCE, Told

PROCESSES = 4
HERE = threading.local()


@pytest.fixture
def four(monkeypatch):
    """Runs a function in four threads, each a process of two devices; returns what each returned."""
    board = Told()
    monkeypatch.setattr(distributed, "processes", lambda: PROCESSES)
    monkeypatch.setattr(distributed, "process", lambda: HERE.process)
    monkeypatch.setattr(distributed, "Board", lambda: board)

    def run(act):
        def one(process):
            HERE.process = process
            with closing(Crossing()) as crossed:
                crossed._name = "crossing"
                return act(crossed)

        with ThreadPoolExecutor(PROCESSES) as threads:
            return [each.result(PATIENCE) for each in [threads.submit(one, number) for number in range(PROCESSES)]]

    return run


@dataclass(frozen=True)
class Device:
    id: int

    @property
    def process_index(self):
        return self.id // 2


@dataclass(frozen=True)
class Split:
    """Sharding over eight devices, of four parts on axis `fsdp` and of two on axis `data`; None where it is whole."""

    fsdp: int | None = None
    data: int | None = None

    def devices_indices_map(self, shape):
        def of(device):
            index = [slice(None)] * len(shape)
            for axis, parts, number in ((self.fsdp, 4, device % 4), (self.data, 2, device // 4)):
                if axis is not None:
                    size = shape[axis] // parts
                    index[axis] = slice(number * size, (number + 1) * size)
            return tuple(index)

        return {Device(device): of(device) for device in range(8)}

    def own(self, shape):
        """The indices of what the process of this thread holds."""
        return [
            index for device, index in self.devices_indices_map(shape).items() if device.process_index == HERE.process
        ]


SPLITS = [Split(fsdp=0), Split(fsdp=1), Split(fsdp=0, data=1), Split()]


def values(dtype):
    return np.arange(8 * 12).reshape(8, 12).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.uint8])
@pytest.mark.parametrize("split", SPLITS[:3])
def test_the_first_process_has_the_whole_of_what_is_split_and_the_others_nothing(four, split, dtype):
    whole = values(dtype)

    def act(crossed):
        shards = [SimpleNamespace(index=index, data=whole[index]) for index in split.own(whole.shape)]
        leaf = SimpleNamespace(shape=whole.shape, dtype=whole.dtype, sharding=split, addressable_shards=shards)
        leaf.is_fully_addressable = leaf.is_fully_replicated = False
        return crossed.on_first(leaf)

    first, *others = four(act)
    assert first.dtype == dtype
    assert first.ctypes.data % 64 == 0  # else JAX on a CPU would copy it to write it
    np.testing.assert_array_equal(first, whole)
    assert others == [None] * 3


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.uint8])
@pytest.mark.parametrize("split", SPLITS)
def test_each_process_gets_the_parts_of_its_devices_and_jax_copies_them(four, monkeypatch, split, dtype):
    """JAX on a CPU would keep a whole array with a view of it, and cannot donate what it takes over."""
    whole = values(dtype)

    def own(shape, sharding, of):
        return [(index, of(index)) for index in sharding.own(shape)]

    monkeypatch.setattr(jax, "make_array_from_callback", own)
    like = SimpleNamespace(shape=whole.shape, dtype=whole.dtype, sharding=split)

    def act(crossed):
        return crossed.from_first(whole if HERE.process == 0 else None, like)

    for made in four(act):
        for index, part in made:
            assert part.dtype == dtype
            assert part is whole or (part.ctypes.data % 64 == 16 and not np.shares_memory(part, whole))
            np.testing.assert_array_equal(part, whole[index])


@pytest.mark.parametrize("process", [0, 1])
@pytest.mark.parametrize(("addressable", "replicated"), [(True, False), (False, True), (True, True)])
def test_what_the_first_one_has_whole_is_asked_of_nobody_and_copied_there_alone(
    monkeypatch, addressable, replicated, process
):
    class Leaf:
        is_fully_addressable, is_fully_replicated = addressable, replicated
        copies = 0

        def __array__(self, dtype=None, copy=None):
            self.copies += 1
            return np.arange(3)

    monkeypatch.setattr(distributed, "process", lambda: process)
    leaf, crossed = Leaf(), Crossing()
    found = crossed.on_first(leaf)
    assert leaf.copies == (process == 0)
    assert found is None if process else found.tolist() == [0, 1, 2]
    assert not crossed._connections
