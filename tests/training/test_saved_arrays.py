"""Arrays in parts: who saves which, and that any part of an array can be read from any others that make it up."""

import itertools
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hypotheses import examples
from plimsoll.training import saved_arrays
from plimsoll.training.saved_arrays import (
    Reader,
    SavedPart,
    names_of,
    own_parts,
    part_of,
    pieces,
    read_part,
    read_whole,
    read_within,
    saved_parts,
    size_of,
    start_writing,
)


def in_memory(arrays):
    """A reader of pieces that counts the bytes of each read."""
    kept = {f"{name}#{at}": piece for name, array in arrays.items() for at, piece in enumerate(pieces(array))}
    reads = []

    def read(wanted):
        assert all(kept[name].shape == like.shape and kept[name].dtype == like.dtype for name, like in wanted.items())
        reads.append(sum(like.nbytes for like in wanted.values()))
        return {name: kept[name] for name in wanted}

    read.reads = reads
    return read


@st.composite
def cut_up(draw):
    """The shape of an array, the grid that it is saved in, and a part that is wanted."""
    shape = draw(st.lists(st.integers(1, 7), max_size=4))
    borders = [sorted({0, size, *draw(st.lists(st.integers(0, size), max_size=2))}) for size in shape]
    wanted = [sorted(draw(st.tuples(st.integers(0, size), st.integers(0, size)))) for size in shape]
    return tuple(shape), borders, tuple(map(tuple, wanted))


@settings(max_examples=examples(150))
@given(cut=cut_up(), piece=st.integers(1, 40), block=st.integers(1, 60))
def test_any_part_is_read_from_any_parts_that_make_up_the_array(cut, piece, block):
    shape, borders, wanted = cut
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saved_arrays, "SLICE_BYTES", 4 * piece)
        patch.setattr(saved_arrays, "BLOCK_BYTES", 4 * block)
        whole = np.arange(prod(shape), dtype=np.int32).reshape(shape)
        parts = [SavedPart(0, part) for part in itertools.product(*(itertools.pairwise(each) for each in borders))]
        held = {f"x@{at}": whole[tuple(slice(*each) for each in saved.part)] for at, saved in enumerate(parts)}
        reader = in_memory(held)

        def read(number, within, out):
            read_within(reader, f"x@{number}", size_of(parts[number].part), within, out)

        found = read_part(wanted, parts, np.int32, read)
        np.testing.assert_array_equal(found, whole[tuple(slice(*each) for each in wanted)])
        assert found.shape == size_of(wanted)
        assert all(size <= 4 * (block + 2 * piece) for size in reader.reads)


def test_what_is_not_wanted_is_not_read():
    """Of 1,000 rows in pieces of 10: rows 100 to 120 take 2 pieces, and not the part that has none of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saved_arrays, "SLICE_BYTES", 40)
        parts = [SavedPart(0, ((0, 500),)), SavedPart(1, ((500, 1000),))]
        reader = in_memory({"x@0": np.arange(500, dtype=np.float32), "x@1": np.arange(500, dtype=np.float32)})
        read_part(
            ((100, 120),),
            parts,
            np.float32,
            lambda at, within, out: read_within(reader, f"x@{at}", (500,), within, out),
        )
        assert reader.reads == [80]


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.uint8, np.int32])
def test_what_orbax_wrote_in_parts_is_read_again(tmp_path, dtype, monkeypatch):
    monkeypatch.setattr(saved_arrays, "SLICE_BYTES", 256)
    whole = np.random.default_rng(0).integers(0, 200, (31, 17)).astype(dtype)
    written = {f"x#{at}": piece for at, piece in enumerate(pieces(whole))}
    start_writing(tmp_path / "arrays", written, in_background=False)()
    reader = Reader(tmp_path / "arrays", names_of("x", whole.shape, dtype))
    np.testing.assert_array_equal(read_whole(reader, "x", whole.shape, dtype), whole)
    some = np.empty((5, 9), dtype)
    read_within(reader, "x", whole.shape, ((20, 25), (3, 12)), some)
    np.testing.assert_array_equal(some, whole[20:25, 3:12])


def test_every_part_has_one_process_that_holds_it_and_nobody_saves_much_more():
    """Eight devices, as two processes of four would see them: JAX' own are all of process 0."""

    class Device:
        def __init__(self, number):
            self.process_index = number // 4

    class Split:
        def __init__(self, shape, ways):
            self.shape, self.ways = shape, ways

        def devices_indices_map(self, shape):
            rows = shape[0] // self.ways
            return {
                Device(at): (
                    slice(at % self.ways * rows, (at % self.ways + 1) * rows),
                    *(slice(None),) * (len(shape) - 1),
                )
                for at in range(8)
            }

    class Leaf:
        def __init__(self, shape, ways):
            self.shape, self.dtype, self.sharding = shape, np.dtype(np.float32), Split(shape, ways)

    leaves = [("a", Leaf((80, 10), 8)), ("b", Leaf((80, 10), 2)), *((f"c{at}", Leaf((100,), 1)) for at in range(10))]
    found = saved_parts(leaves)
    busy = [0, 0]
    for path, leaf in leaves:
        taken = np.zeros(leaf.shape, int)
        holders = leaf.sharding.devices_indices_map(leaf.shape)
        for saved in found[path]:
            taken[tuple(slice(*each) for each in saved.part)] += 1
            assert any(
                device.process_index == saved.process and part_of(index, leaf.shape) == saved.part
                for device, index in holders.items()
            )
            busy[saved.process] += prod(size_of(saved.part))
        assert (taken == 1).all()
    assert abs(busy[0] - busy[1]) <= 100


def test_of_one_process_every_part_is_its_own():
    mesh = Mesh(np.array(jax.devices()[:1]), ("x",))
    leaf = jax.device_put(jnp.arange(12.0).reshape(3, 4), NamedSharding(mesh, PartitionSpec("x")))
    (saved,) = saved_parts([("a", leaf)])["a"]
    assert saved == SavedPart(0, ((0, 3), (0, 4)))
    ((name, values),) = own_parts([("a", leaf)], {"a": [saved]})
    assert name == "a@0"
    np.testing.assert_array_equal(values, leaf)
    assert own_parts([("a", leaf)], {"a": [SavedPart(1, saved.part)]}) == []
