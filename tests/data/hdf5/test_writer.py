"""A new file is complete or absent, however its process ends."""

import signal
import subprocess
import sys

import h5py
import numpy as np
import pytest

from plimsoll.data.hdf5 import writer
from plimsoll.data.hdf5.writer import Column, new_file
from plimsoll.errors import DataError, StoppedError
from plimsoll.files.facts import Facts

COLUMNS = {"x": Column((2,), "f4"), "n": Column((), "i8")}


def writing(path, *, rows=10, chunk_rows=4, compression=None, **made_with):
    facts = Facts(options=made_with)
    return new_file(path, COLUMNS, rows=rows, made_with=facts, chunk_rows=chunk_rows, compression=compression)


def rows_of(begin, end):
    return {"x": np.arange(2.0 * begin, 2.0 * end, dtype="f4").reshape(-1, 2), "n": np.arange(begin, end)}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("compression", [None, "lzf", "gzip"])
def test_rows_come_back_in_their_order_from_chunks_with_a_checksum(tmp_path, compression):
    path = tmp_path / "x.h5"
    with writing(path, compression=compression, seed=1) as file:
        for begin, end in ((0, 4), (4, 7), (7, 10)):
            file.append(rows_of(begin, end))
            assert file.done == end
        assert names(tmp_path) == ["x.h5.lock", "x.h5.partial"]
    assert names(tmp_path) == ["x.h5"]
    with h5py.File(path, "r") as found:
        assert found["x"][()].tolist() == rows_of(0, 10)["x"].tolist()
        assert found["n"][()].tolist() == list(range(10))
        assert (found["x"].chunks, found["n"].chunks) == ((4, 2), (4,))
        assert (found["x"].compression, found["x"].fletcher32) == (compression, True)
        assert dict(found.attrs) == {"made_with": '{"files": {}, "options": {"seed": 1}}'}


def test_a_file_without_all_of_its_rows_is_none(tmp_path):
    with pytest.raises(AssertionError, match="9 of 10 rows"), writing(tmp_path / "x.h5") as file:
        file.append(rows_of(0, 9))
    assert names(tmp_path) == []


def test_nothing_is_left_of_what_was_interrupted(tmp_path):
    def interrupted():
        with writing(tmp_path / "x.h5") as file:
            file.append(rows_of(0, 4))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert names(tmp_path) == []


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from plimsoll.data.hdf5.writer import Column, new_file
from plimsoll.files.facts import Facts
with new_file(Path(sys.argv[1]), {"x": Column((64,), "f4")}, rows=400, made_with=Facts(), chunk_rows=100,
              compression="lzf") as file:
    for at in range(0, 400, 100):
        file.append({"x": np.ones((100, 64), np.float32)})
        file.file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_begun_again(tmp_path):
    path = tmp_path / "x.h5"
    killed = subprocess.run([sys.executable, "-c", KILLED, path], capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert names(tmp_path) == ["x.h5.lock", "x.h5.partial"]
    with writing(path) as file:
        file.append(rows_of(0, 10))
    assert names(tmp_path) == ["x.h5"]
    with h5py.File(path, "r") as found:
        assert found["n"][()].tolist() == list(range(10))


@pytest.mark.parametrize(("lacking", "stopped"), [(0, False), (1, True)])
def test_16_mib_stay_free_beside_twice_what_is_written(tmp_path, monkeypatch, lacking, stopped):
    size = 10 * (2 * 4 + 8)
    monkeypatch.setattr(writer, "free_bytes", lambda path: 16 * 2**20 + 2 * size - lacking)

    def written():
        with writing(tmp_path / "x.h5") as file:
            file.append(rows_of(0, 10))

    if stopped:
        with pytest.raises(StoppedError, match=r"the disk became full .* on another disk"):
            written()
    else:
        written()
    assert names(tmp_path) == ([] if stopped else ["x.h5"])


def test_a_file_is_finished_where_it_is_there_and_made_with_the_same_options(tmp_path):
    assert not writer.is_finished(tmp_path / "x.h5", Facts(options={"seed": 1}))
    with writing(tmp_path / "x.h5", chunk_rows=512, seed=1) as file:
        file.append(rows_of(0, 10))
        assert file.file["x"].chunks == (10, 2)  # a small set has one of all of it
    assert writer.is_finished(tmp_path / "x.h5", Facts(options={"seed": 1}))
    with pytest.raises(DataError, match="is there already, and seed was 1 and is 2"):
        writer.is_finished(tmp_path / "x.h5", Facts(options={"seed": 2}))
    with h5py.File(tmp_path / "z.h5", "w") as file:
        file["x"] = 1
    with pytest.raises(DataError, match="does not say what it was made with"):
        writer.is_finished(tmp_path / "z.h5", Facts())
