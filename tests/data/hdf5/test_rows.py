"""Spans, sizes and orders of the rows of an HDF5 file: those of small files, by hand.

The order is part of what a seed promises: a run that is continued by a later version goes on in it.
"""

import h5py
import numpy as np
import pytest

from plimsoll.data.hdf5.rows import Hdf5Rows, huge_chunk_advice, not_finite, row_bytes_of
from plimsoll.data.hdf5.shuffled import MixedChunks, in_order
from plimsoll.errors import DataError


def write(path, attributes=None, **columns):
    with h5py.File(path, "w") as file:
        for name, (values, chunks) in columns.items():
            file.create_dataset(name, data=values, chunks=chunks)
        file.attrs.update(attributes or {})
    return path


@pytest.fixture
def eleven(tmp_path):
    """Eleven rows that say which they are, in chunks of three."""
    path = write(tmp_path / "x.h5", x=(np.arange(11.0, dtype=np.float32)[:, None], (3, 1)))
    return Hdf5Rows(path, {"x": "x"})


def test_a_file_says_what_a_row_and_a_chunk_are(tmp_path):
    """The wider column decides what a chunk is: rows of four float32 and of one int64."""
    path = write(tmp_path / "x.h5", narrow=(np.arange(10), (2,)), wide=(np.zeros((10, 4), np.float32), (5, 2)))
    rows = Hdf5Rows(path, {"a": "narrow", "b": "wide"})
    assert (len(rows), rows.row_bytes, rows.chunk_rows) == (10, 8 + 16, 5)
    assert rows.row_spec == {"a": ((), "int64"), "b": ((4,), "float32")}
    with h5py.File(path) as file:
        assert [row_bytes_of(file[name]) for name in ("narrow", "wide")] == [8, 16]


@pytest.mark.parametrize(("count", "chunk_rows"), [(5, 5), (512, 512), (513, 512)])
def test_what_has_no_chunks_is_read_512_rows_at_a_time(tmp_path, count, chunk_rows):
    path = write(tmp_path / "x.h5", x=(np.zeros(count), None))
    assert Hdf5Rows(path, {"x": "x"}).chunk_rows == chunk_rows


@pytest.mark.parametrize(("size", "huge"), [(2**20, False), (2**20 + 1, True)])
def test_a_chunk_of_more_than_8_mib_is_huge_and_warned_of(tmp_path, size, huge):
    path = write(tmp_path / "x.h5", x=(np.zeros(size), (size,)))
    with h5py.File(path) as file:
        assert (huge_chunk_advice(file["x"]) is not None) == huge


@pytest.mark.parametrize(
    ("begin", "end", "spans"),
    [(0, None, (0, 4, 3)), (0, 3, (0, 1, 3)), (0, 4, (0, 2, 3)), (3, 9, (1, 2, 3)), (9, 11, (3, 1, 3))],
)
def test_spans_hold_all_rows_that_were_asked_for(eleven, begin, end, spans):
    assert eleven.spans(begin, end) == spans


@pytest.mark.parametrize(
    ("most", "spans"),
    [(1, [(0, 3)]), (2, [(0, 3), (9, 11)]), (3, [(0, 3), (6, 9), (9, 11)]), (9, [(0, 3), (3, 6), (6, 9), (9, 11)])],
)
def test_spread_spans_are_from_end_to_end(eleven, most, spans):
    assert list(eleven.spread_spans(most)) == spans


def test_a_row_is_finite_where_all_of_it_in_all_columns_is():
    ones = np.ones((4, 2), np.float32)
    ones[1, 1] = np.nan
    other = np.array([1.0, 1.0, np.inf, 1.0])
    assert not_finite({"a": ones, "b": other, "c": np.arange(4)}).tolist() == [False, True, True, False]
    assert not_finite({"a": np.zeros((0, 2))}).tolist() == []
    large = np.array([[3e38, 3e38], [np.inf, -np.inf]], np.float32)  # whose sums are not what they are
    assert not_finite({"a": large}).tolist() == [False, True]


def numbers(batches):
    return [batch["x"][:, 0].astype(int).tolist() for batch in batches]


def order_of(seed, epoch, rows=range(11), mix=2, span=3):
    """The rows of an epoch by the words of the module: chunks in an order, so many of them mixed."""
    first, last = rows[0] // span, -(-(rows[-1] + 1) // span)
    chunks = np.random.default_rng([seed, 4, epoch]).permutation(np.arange(last - first, dtype=np.int32)) + first
    order = []
    for group in range(-(-len(chunks) // mix)):
        there = [
            row for chunk in chunks[mix * group : mix * group + mix] for row in range(span * chunk, span * chunk + span)
        ]
        there = np.array([row for row in there if row in rows])
        order += there[np.random.default_rng([seed, 5, epoch, group]).permutation(len(there))].tolist()
    return order


@pytest.mark.parametrize("rows", [(0, 11), (2, 10), (3, 9)])
def test_the_order_of_an_epoch_is_that_of_its_seed(eleven, rows):
    source = MixedChunks(eleven, batch_size=4, seed=9, rows=rows, mix=2)
    batches = source.walk({"epoch": 0, "group": 0, "row": 0, "skipped": 0})
    found = [row for _ in range(4) for row in numbers([next(batches)])[0]]
    inside = range(*rows)
    assert found == (order_of(9, 0, inside) + order_of(9, 1, inside) + order_of(9, 2, inside))[:16]


def test_without_shuffling_rows_come_as_they_stand_and_begin_again(eleven):
    source = MixedChunks(eleven, batch_size=4, seed=9, mix=2, shuffle=False)
    assert (source.first, source.count, source.span, source.groups) == (0, 4, 3, 2)
    at = {"epoch": 0, "group": 0, "row": 0, "skipped": 0}
    batches = source.walk(at)
    assert numbers([next(batches) for _ in range(3)]) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 0]]
    assert at == {"epoch": 1, "group": 0, "row": 1, "skipped": 0}


def test_rows_that_are_left_out_are_counted_once_an_epoch_and_a_file_of_no_others_is_refused(tmp_path):
    values = np.arange(6.0, dtype=np.float32)[:, None]
    values[[1, 4, 5]] = np.nan
    rows = Hdf5Rows(write(tmp_path / "x.h5", x=(values, (2, 1))), {"x": "x"})
    source = MixedChunks(rows, batch_size=3, seed=9, mix=1, shuffle=False, skip_bad=True)
    at = {"epoch": 0, "group": 0, "row": 0, "skipped": 0}
    batches = source.walk(at)
    assert numbers([next(batches)]) == [[0, 2, 3]]
    assert (at["skipped"], at["group"]) == (1, 2)
    assert numbers([next(batches)]) == [[0, 2, 3]]
    assert at["skipped"] == 4
    bad = Hdf5Rows(write(tmp_path / "y.h5", x=(np.full((6, 1), np.nan), (2, 1))), {"x": "x"})
    nothing = MixedChunks(bad, batch_size=3, seed=9, mix=1, skip_bad=True)
    with pytest.raises(DataError, match="has no row to train on: all of an epoch were left out"):
        next(nothing.walk({"epoch": 0, "group": 0, "row": 0, "skipped": 0}))
    with pytest.raises(DataError, match="has no rows from 3 to 3"):
        MixedChunks(bad, batch_size=3, seed=9, rows=(3, 3))


def test_in_order_batches_are_full_but_for_the_last(eleven):
    given = {"batch_size": 4, "derive": lambda rows: rows, "skip_bad": False}
    found = [(numbers([rows])[0], count) for rows, count in in_order(eleven, [(0, 3), (3, 6), (9, 11)], **given)]
    assert found == [([0, 1, 2, 3], 4), ([4, 5, 9, 10], 4)]
    found = [(numbers([rows])[0], count) for rows, count in in_order(eleven, [(0, 6)], **given)]
    assert found == [([0, 1, 2, 3], 4), ([4, 5], 2)]


@pytest.mark.parametrize(("bad", "named"), [(range(5), "0, 1, 2, 3, 4, 5"), (range(6), "0, 1, 2, 3, 4, ..., 6")])
def test_of_rows_that_are_not_finite_five_are_named(tmp_path, bad, named):
    values = np.zeros((8, 1))
    values[list(bad)] = np.nan
    rows = Hdf5Rows(write(tmp_path / "x.h5", x=(values, (8, 1))), {"x": "x"})
    with pytest.raises(DataError, match=f"rows that are not finite: {named} of rows 0 to 8"):
        next(MixedChunks(rows, batch_size=3, seed=9).walk({"epoch": 0, "group": 0, "row": 0, "skipped": 0}))
