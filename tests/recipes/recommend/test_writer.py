"""The folder is there whole, or not at all."""

import errno

import numpy as np
import pytest

from interaction_files import write_small
from plimsoll.errors import DataError, StoppedError
from plimsoll.recipes.recommend import writer

SEQUENCES = [[1, 2, 3], [3, 2]]


def test_a_set_that_is_there_is_not_written_over(tmp_path):
    write_small(tmp_path / "set", SEQUENCES)
    with pytest.raises(DataError, match="set is there already: name another --out"):
        write_small(tmp_path / "set", SEQUENCES)
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_a_disk_without_room_is_refused_before_the_first_byte(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "free_bytes", lambda path: 1000)
    with pytest.raises(DataError, match=r"1000 B are free at .*name an --out on another disk"):
        write_small(tmp_path / "set", SEQUENCES)
    assert not list(tmp_path.iterdir())


def test_a_disk_that_becomes_full_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(np, "save", fail)
    with pytest.raises(StoppedError, match=r"the disk became full while .*set was written"):
        write_small(tmp_path / "set", SEQUENCES)
    assert not list(tmp_path.iterdir())
