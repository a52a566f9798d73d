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
    """Real ones: docs/log.md, "Full disks"."""
    left = iter([2**30, 2**30, 2**24])
    monkeypatch.setattr("plimsoll.data.hdf5.rechunk.free_bytes", lambda path: next(left))
    with pytest.raises(StoppedError, match=r"the disk is full \(16.0 MiB free .* after 2,000 of 5,000 rows of deep/x"):
        rechunk(old, tmp_path / "new.h5")
    assert [path.name for path in tmp_path.iterdir()] == ["old.h5"]
