"""A file written anew in smaller chunks holds what the old one held, and nothing half written is left behind."""

import h5py
import numpy as np
import pytest

from plimsoll.data.hdf5.rechunk import rechunk
from plimsoll.errors import DataError, StoppedError

ROWS = 5000


@pytest.fixture
def old(tmp_path):
    random = np.random.default_rng(0)
    with h5py.File(tmp_path / "old.h5", "w") as file:
        file.attrs["seed"] = 7
        file.create_dataset(
            "deep/x", data=random.standard_normal((ROWS, 6, 4)).astype("f4"), chunks=(2000, 6, 4), compression="gzip"
        )
        file["deep"].attrs["made"] = "by hand"
        file["deep/x"].attrs["unit"] = "m"
        file.create_dataset("name", data=random.integers(0, 9, ROWS).astype("S8"))
        file["scale"] = np.arange(6.0)
    return tmp_path / "old.h5"


def test_all_of_it_is_there_in_new_chunks(old, tmp_path):
    found = rechunk(old, tmp_path / "new.h5", chunk_rows=300)
    assert (found["rows"], found["datasets"]) == (ROWS, 2)
    with h5py.File(old) as before, h5py.File(tmp_path / "new.h5") as after:
        assert dict(after.attrs) == dict(before.attrs)
        assert dict(after["deep"].attrs) == {"made": "by hand"}
        assert dict(after["deep/x"].attrs) == {"unit": "m"}
        for name in ("deep/x", "name", "scale"):
            assert after[name].dtype == before[name].dtype
            assert np.array_equal(after[name][()], before[name][()])
        assert [(after[name].chunks, after[name].compression) for name in ("deep/x", "name")] == [
            ((300, 6, 4), "lzf"),
            ((300,), "lzf"),
        ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.h5", "old.h5"]


def test_nothing_is_written_over(old, tmp_path):
    for name in ("new.h5", "new.h5.partial"):
        (tmp_path / name).write_text("mine")
        with pytest.raises(DataError, match=r"is there"):
            rechunk(old, tmp_path / "new.h5")
        assert (tmp_path / name).read_text() == "mine"
        (tmp_path / name).unlink()


@pytest.mark.parametrize(
    ("how", "said"), [({"chunk_rows": 0}, "--chunk-rows"), ({"new": "no/such/new.h5"}, "there is no folder")]
)
def test_what_cannot_be_done_is_refused(old, tmp_path, how, said):
    with pytest.raises(DataError, match=said):
        rechunk(old, tmp_path / how.pop("new", "new.h5"), **how)


def test_a_disk_that_fills_up_is_said_and_leaves_nothing(old, tmp_path, monkeypatch):
    """Real ones: notes, "Full disks"."""
    left = iter([2**30, 2**30, 2**24])
    monkeypatch.setattr("plimsoll.data.hdf5.rechunk.free_bytes", lambda path: next(left))
    with pytest.raises(StoppedError, match=r"the disk is full \(16.0 MiB free .* after 2,000 of 5,000 rows of deep/x"):
        rechunk(old, tmp_path / "new.h5")
    assert [path.name for path in tmp_path.iterdir()] == ["old.h5"]


def test_spans_are_chunks_of_the_old_file_or_16_mib_and_what_is_done_is_said_of_all_datasets(
    old, tmp_path, monkeypatch
):
    """Of two datasets of 5,000 rows, half of all for each; one is in chunks of 2,000, the other has none."""
    said, asked = [], []
    monkeypatch.setattr("plimsoll.data.hdf5.rechunk.free_bytes", lambda path: asked.append(1) or 2**40)
    found = rechunk(old, tmp_path / "new.h5", progress=lambda done, of: said.append((done, of)))
    assert said == [(1_000, ROWS), (2_000, ROWS), (2_500, ROWS), (5_000, ROWS)]
    assert len(asked) == 1 + 4
    assert found["chunk_rows"] == 512
    assert (found["bytes"], found["bytes_before"]) == ((tmp_path / "new.h5").stat().st_size, old.stat().st_size)
    assert found["path"] == str(tmp_path / "new.h5")


@pytest.mark.parametrize(("lacking", "refused"), [(0, False), (1, True)])
def test_room_for_the_old_file_and_for_each_span_and_16_mib_beside_it_is_needed(
    old, tmp_path, monkeypatch, lacking, refused
):
    size, span = old.stat().st_size, 2_000 * 6 * 4 * 4
    for number, most in enumerate((size, 16 * 2**20 + span)):
        left = [2**40] * number + [most - lacking] + [2**40] * 9
        monkeypatch.setattr("plimsoll.data.hdf5.rechunk.free_bytes", lambda path, left=left: left.pop(0))
        if refused:
            with pytest.raises(DataError if number == 0 else StoppedError):
                rechunk(old, tmp_path / f"{number}.h5")
        else:
            assert rechunk(old, tmp_path / f"{number}.h5")["rows"] == ROWS


@pytest.mark.parametrize(("span_bytes", "done"), [(3 * 16, [3, 6, 7]), (47, [2, 4, 6, 7]), (1, [1, 2, 3, 4, 5, 6, 7])])
def test_a_dataset_without_chunks_is_read_in_spans_of_bytes_and_one_row_at_least(
    tmp_path, monkeypatch, span_bytes, done
):
    said = []
    with h5py.File(tmp_path / "old.h5", "w") as file:
        file.create_dataset("x", data=np.arange(14.0).reshape(7, 2))
    monkeypatch.setattr("plimsoll.data.hdf5.rechunk.SPAN_BYTES", span_bytes)
    rechunk(tmp_path / "old.h5", tmp_path / "new.h5", progress=lambda done, of: said.append(done))
    assert said == done
    with h5py.File(tmp_path / "new.h5") as file:
        np.testing.assert_array_equal(file["x"][()], np.arange(14.0).reshape(7, 2))


def test_a_file_without_rows_is_refused(tmp_path):
    with h5py.File(tmp_path / "old.h5", "w") as file:
        file["x"] = 3.0
        file["y"] = np.zeros((0, 3))
    with pytest.raises(DataError, match="has no dataset with rows"):
        rechunk(tmp_path / "old.h5", tmp_path / "new.h5")
    assert [path.name for path in tmp_path.iterdir()] == ["old.h5"]


def test_the_smallest_chunk_is_one_row(old, tmp_path):
    rechunk(old, tmp_path / "new.h5", chunk_rows=1_000_000)
    with h5py.File(tmp_path / "new.h5") as file:
        assert file["deep/x"].chunks == (ROWS, 6, 4)
    small = tmp_path / "small.h5"
    with h5py.File(small, "w") as file:
        file["x"] = np.arange(3.0)
    assert rechunk(small, tmp_path / "ones.h5", chunk_rows=1)["chunk_rows"] == 1
