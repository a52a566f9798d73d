"""One writer at a time, a disk that is full, and options that are other ones."""

import errno
import fcntl
import os

import pytest

from plimsoll.data import disk
from plimsoll.data.disk import free_bytes, is_full, locked, other_options, read_json, writing
from plimsoll.errors import DataError, StoppedError


def test_a_lock_is_held_until_it_is_given_back_and_leaves_nothing(tmp_path):
    with locked(tmp_path / "x"):
        assert (tmp_path / "x.lock").exists()
        with pytest.raises(DataError, match="another process is writing"):
            locked(tmp_path / "x")
    assert os.listdir(tmp_path) == []
    with locked(tmp_path / "x"):
        pass


def test_a_lock_that_was_removed_meanwhile_is_none(tmp_path, monkeypatch):
    """Between opening and locking its holder removed it, and another process has made a new one."""
    lock = fcntl.flock

    def slow(file, how):
        (tmp_path / "x.lock").unlink()
        (tmp_path / "x.lock").write_text("of another")
        lock(file, how)

    monkeypatch.setattr(disk.fcntl, "flock", slow)
    with pytest.raises(DataError, match="another process is writing"):
        locked(tmp_path / "x")
    assert (tmp_path / "x.lock").read_text() == "of another"


def test_files_are_closed_before_the_lock_is_given_back(tmp_path):
    events = []
    with writing(tmp_path / "x", lambda: "full") as files:
        files.callback(lambda: events.append((tmp_path / "x.lock").exists()))
    assert events == [True]
    assert not (tmp_path / "x.lock").exists()


@pytest.mark.parametrize(
    ("problem", "raised"),
    [
        (OSError(errno.ENOSPC, "no"), StoppedError),
        (OSError(errno.EDQUOT, "no"), StoppedError),
        (OSError("Can't write (errno = 28, error message = 'No space left')"), StoppedError),
        (OSError(errno.EIO, "no"), OSError),
        (ValueError("no"), ValueError),
    ],
)
def test_a_full_disk_is_told_in_words_and_another_error_as_it_is(tmp_path, problem, raised):
    with (
        pytest.raises(raised, match="make room" if raised is StoppedError else "no"),
        writing(tmp_path / "x", lambda: "make room"),
    ):
        raise problem
    assert os.listdir(tmp_path) == []


def test_full_is_told_by_its_number_or_hdf5s_words():
    full = [
        OSError(errno.ENOSPC, ""),
        OSError(errno.EDQUOT, ""),
        OSError("errno = 28"),
        OSError(errno.EIO, ""),
        OSError("28"),
    ]
    assert [is_full(problem) for problem in full] == [True, True, True, False, False]


def test_options_that_differ_are_named_with_both_values():
    then, now = {"a": 1, "b": [1, 2], "c": 3}, {"a": 1, "b": (1, 2), "c": 4, "d": 5}
    assert other_options(then, now) == "c 3 there and 4 here; d unknown there and 5 here"
    assert other_options(now | {"b": [1, 2]}, now) == ""
    assert other_options({"a": 1, "z": 2}, {"a": 1}) == "z 2 there and None here"


def test_json_that_is_absent_or_damaged_is_told_in_the_callers_words(tmp_path):
    with pytest.raises(DataError, match=r"^nothing there$"):
        read_json(tmp_path / "x", absent="nothing there", again="Again.")
    (tmp_path / "x").write_text("{")
    with pytest.raises(DataError, match=r"x cannot be read as JSON \(.*\)\. Again\."):
        read_json(tmp_path / "x", absent="nothing there", again="Again.")
    (tmp_path / "x").write_text("[1]")
    assert read_json(tmp_path / "x", absent="", again="") == [1]


def test_free_are_the_bytes_that_a_user_may_take(tmp_path, monkeypatch):
    class Status:
        f_bavail, f_bfree, f_frsize, f_bsize = 7, 9, 4_096, 1

    asked = []
    monkeypatch.setattr(disk.os, "statvfs", lambda path: asked.append(path) or Status)
    assert free_bytes(tmp_path / "x") == 7 * 4_096
    assert asked == [tmp_path]
