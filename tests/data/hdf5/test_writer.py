"""A file that grows: what is written when, and how much room it leaves."""

import os
import signal
import subprocess
import sys

import h5py
import numpy as np
import pytest

from plimsoll.data.hdf5 import writer
from plimsoll.data.hdf5.compression import compressed, threads
from plimsoll.data.hdf5.writer import Column, GrowingFile
from plimsoll.errors import DataError, StoppedError


def growing(path, *, rows=10, chunk_rows=4, compression=None, **made_with):
    columns = {"x": Column((2,), "f4"), "n": Column((), "i8", fill=-1)}
    return GrowingFile(path, columns, rows=rows, made_with=made_with, chunk_rows=chunk_rows, compression=compression)


def rows_of(begin, end):
    return {"x": np.arange(2.0 * begin, 2.0 * end, dtype="f4").reshape(-1, 2), "n": np.arange(begin, end)}


@pytest.mark.parametrize("compression", [None, "lzf"])
def test_rows_come_back_in_their_order_and_those_that_were_not_written_as_their_fill(tmp_path, compression):
    path = tmp_path / "x.h5"
    with growing(path, compression=compression) as file:
        file.begin()
        file.append(rows_of(0, 4))
        file.append(rows_of(4, 8))
        file.mark()
        assert file.done == 8
    with h5py.File(path.with_name("x.h5.partial"), "r") as found:
        assert found["n"][()].tolist() == [*range(8), -1, -1]
        assert (found["x"].chunks, found["n"].chunks, found.attrs["rows_written"]) == ((4, 2), (4,), 8)
    with growing(path, compression=compression) as file:
        assert file.done == 8
        file.begin()
        file.append(rows_of(8, 10))
        file.finish()
    with h5py.File(path, "r") as found:
        assert found["x"][()].tolist() == rows_of(0, 10)["x"].tolist()
        assert found["n"][()].tolist() == list(range(10))
        assert found.attrs["rows_written"] == 10


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from plimsoll.data.hdf5.writer import Column, GrowingFile
def killed():
    os.kill(os.getpid(), signal.SIGKILL)
columns = {name: Column((64,), "f4") for name in "ab"}
with GrowingFile(Path(sys.argv[1]), columns, rows=400, made_with={}, chunk_rows=100, compression="lzf") as file:
    file.begin()
    for at in range(file.done, 400, 100):
        values = np.random.default_rng(at).random((100, 64), np.float32)
        file.append({"a": values, "b": -values})
        if at == int(sys.argv[2]):
            file._write_compressed(leave=0)
            file.file.flush = killed
        file.mark()
    file.finish()
"""


@pytest.mark.parametrize("kills", [(0,), (100, 100, 300)])
def test_a_kill_between_the_chunks_and_the_files_length_loses_nothing(tmp_path, kills):
    """The index then points behind what the file says is its end: rows to come must go behind both."""
    path = tmp_path / "x.h5"
    for at in (*kills, -1):
        command = [sys.executable, "-c", KILLED, str(path), str(at)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        answer = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert answer.returncode == (0 if at < 0 else -signal.SIGKILL), answer.stderr
    with h5py.File(path, "r") as found:
        for at in range(0, 400, 100):
            values = np.random.default_rng(at).random((100, 64), np.float32)
            assert np.array_equal(found["a"][at : at + 100], values)
            assert np.array_equal(found["b"][at : at + 100], -values)


def test_chunks_that_are_not_whole_or_begin_elsewhere_are_packed_by_h5py(tmp_path):
    with growing(tmp_path / "x.h5", compression="lzf") as file:
        file.begin()
        for begin, end in ((0, 3), (3, 7), (7, 8), (8, 10)):
            file.append(rows_of(begin, end))
            assert not file._in_flight
        file.finish()
    with h5py.File(tmp_path / "x.h5", "r") as found:
        assert found["n"][()].tolist() == list(range(10))


def test_no_more_chunks_are_in_flight_than_twice_the_threads(tmp_path):
    with growing(tmp_path / "x.h5", rows=80, compression="lzf") as file:
        assert file.threads == threads() > 0
        file.begin()
        waiting = []
        for begin in range(0, 80, 4):
            file.append(rows_of(begin, begin + 4))
            waiting.append(len(file._in_flight))
        assert waiting == [min(number, 2 * file.threads) for number in range(1, 21)]
        file.mark()
        assert not file._in_flight
        file.finish()


@pytest.mark.parametrize(("compression", "in_flight"), [(None, 2), ("lzf", 2 * threads() + 2)])
@pytest.mark.parametrize(("lacking", "stopped"), [(0, False), (1, True)])
def test_16_mib_stay_free_beside_what_is_in_flight(tmp_path, monkeypatch, compression, in_flight, lacking, stopped):
    size = 4 * (2 * 4 + 8)
    with growing(tmp_path / "x.h5", compression=compression) as file:
        file.begin()
        monkeypatch.setattr(writer, "free_bytes", lambda path: 16 * 2**20 + in_flight * size - lacking)
        if stopped:
            with pytest.raises(StoppedError, match=r"the disk is full .* 0 of 10 rows are good"):
                file.append(rows_of(0, 4))
        else:
            file.append(rows_of(0, 4))


def test_a_file_is_not_finished_with_fewer_rows_than_it_has(tmp_path):
    with growing(tmp_path / "x.h5") as file:
        file.begin()
        file.append(rows_of(0, 9))
        with pytest.raises(AssertionError, match="9 of 10 rows"):
            file.finish()


def test_a_small_set_has_a_chunk_of_all_of_it(tmp_path):
    with growing(tmp_path / "x.h5", rows=3, chunk_rows=512) as file:
        assert file.file["x"].chunks == (3, 2)


def test_what_was_made_otherwise_is_not_continued_and_what_is_there_not_written_over(tmp_path):
    with growing(tmp_path / "x.h5", seed=1):
        pass
    with (
        pytest.raises(DataError, match="was begun with other options, seed 1 there and 2 here"),
        growing(tmp_path / "x.h5", seed=2),
    ):
        pass
    (tmp_path / "y.h5").write_text("mine")
    with pytest.raises(DataError, match=r"y\.h5 is there already"), growing(tmp_path / "y.h5"):
        pass
    assert not writer.is_finished(tmp_path / "z.h5", {})


def test_a_chunk_is_stored_as_it_was_where_packing_would_make_it_larger():
    noise = np.frombuffer(np.random.default_rng(0).bytes(4_096), np.uint8)
    data, mask = compressed(noise, None)
    assert (mask, data[:-4]) == (1, noise.tobytes())
    data, mask = compressed(np.zeros(4_096, np.uint8), None)
    assert mask == 0
    assert len(data) < 200
    data, mask = compressed(noise, lambda chunk: b"as it knows")
    assert (mask, data[:-4]) == (0, b"as it knows")


def test_a_checksum_is_fletchers_of_what_is_stored():
    """By the words of HDF5: sums of 16-bit words, big-endian, modulo 65,535; the second sum above the first."""
    stored = bytes(range(1, 9))
    first = second = 0
    for at in range(0, 8, 2):
        first = (first + (stored[at] << 8) + stored[at + 1]) % 65_535
        second = (second + first) % 65_535
    data, _ = compressed(np.zeros(8, np.uint8), lambda chunk: stored)
    assert data[-4:] == ((second << 16) | first).to_bytes(4, "little")
