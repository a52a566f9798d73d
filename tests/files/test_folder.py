"""A folder that is made is complete or absent, whatever ends its making."""

import errno
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from plimsoll.errors import DataError, StoppedError
from plimsoll.files.facts import Facts
from plimsoll.files.folder import made, opened
from plimsoll.files.manifest import damage

FACTS = Facts(options={"rows": 3})


def make(folder):
    (folder / "part").mkdir(exist_ok=True)
    (folder / "part/rows.txt").write_text("a\nb\nc\n")
    return {"rows": 3}


def never(folder):
    pytest.fail("it is there")


def test_it_is_made_once_and_says_what_it_was_made_with(tmp_path):
    first = made(tmp_path / "there/set", FACTS, make)
    assert made(tmp_path / "there/set", FACTS, never) == first == opened(first.path)
    assert (first.made_with, first.counts) == (FACTS, {"rows": 3})
    assert damage(first.path) is None
    assert os.listdir(tmp_path / "there") == ["set"]


def test_one_of_other_options_is_neither_returned_nor_touched(tmp_path):
    made(tmp_path / "set", FACTS, make)
    with pytest.raises(DataError, match="set is there already, and rows was 3 and is 4: name another --out"):
        made(tmp_path / "set", Facts(options={"rows": 4}), never)
    assert made(tmp_path / "set", FACTS, never)


def test_what_somebody_else_made_is_not_touched(tmp_path):
    (tmp_path / "letters").mkdir()
    made(tmp_path / "letters", FACTS, make)  # it was empty
    (tmp_path / "others").mkdir()
    (tmp_path / "others/a.txt").write_text("dear reader")
    for name in ("others", "others/a.txt"):
        with pytest.raises(DataError, match="is there already, and is no complete data set"):
            made(tmp_path / name, FACTS, never)


@pytest.mark.parametrize("problem", [DataError("no rows"), KeyboardInterrupt(), OSError(errno.EIO, "broken")])
@pytest.mark.parametrize("continues", [False, True])
def test_what_fails_leaves_nothing_unless_it_is_to_be_continued(tmp_path, problem, continues):
    def fail(folder):
        make(folder)
        raise problem

    with pytest.raises(type(problem)):
        made(tmp_path / "set", FACTS, fail, continues=continues)
    assert os.listdir(tmp_path) == (["set.partial"] if continues else [])

    def make_rest(folder):
        assert (folder / "part").exists() == continues
        return make(folder)

    assert made(tmp_path / "set", FACTS, make_rest, continues=continues).counts == {"rows": 3}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_one_paragraph_and_nothing_is_left_on_it(tmp_path, number):
    def fill(folder):
        raise OSError(number, os.strerror(number))

    with pytest.raises(StoppedError, match=r"the disk became full while .*set was written .* on another disk"):
        made(tmp_path / "set", FACTS, fill)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("what", ["part/rows.txt", "meta.json"])
def test_a_damaged_one_is_made_again_where_that_is_asked_for(tmp_path, what):
    path = made(tmp_path / "set", FACTS, make).path
    (path / what).write_text("{}")
    said = []
    assert made(path, FACTS, make, verified=True, say=said.append).counts == {"rows": 3}
    assert said == [f"{path} is damaged and made again ({what} has changed since it was written)"]
    assert damage(path) is None


def test_a_second_process_waits_for_the_first(tmp_path):
    begun, waits = threading.Event(), threading.Event()

    def make_slowly(folder):
        begun.set()
        assert waits.wait(20)
        return make(folder)

    with ThreadPoolExecutor() as threads:
        first = threads.submit(made, tmp_path / "set", FACTS, make_slowly)
        assert begun.wait(20)
        second = made(tmp_path / "set", FACTS, never, say=lambda words: waits.set())
    assert second == first.result()
    assert os.listdir(tmp_path) == ["set"]


CUT_OFF = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from plimsoll.files import folder, manifest
from plimsoll.files.facts import Facts

left = int(sys.argv[2])
def counted(function):
    def call(*arguments, **options):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return call

for owner, names in ((os, ("fsync", "open", "mkdir")), (Path, ("rename", "replace", "mkdir", "write_text"))):
    for name in names:
        setattr(owner, name, counted(getattr(owner, name)))

def make(place):
    assert not list(place.iterdir())
    (place / "rows.txt").write_text("a")
    return {}

folder.made(Path(sys.argv[1]), Facts(), make)
"""


def test_killed_at_any_call_it_is_complete_or_absent(tmp_path):
    """In one process each, forked: one call further every time, until it is not killed."""
    path, killed = tmp_path / "set", 0
    while True:
        process = subprocess.run([sys.executable, "-c", CUT_OFF, path, str(1 + 3 * killed)], check=False)
        if opened(path) is not None:
            assert damage(path) is None
        else:
            assert not path.exists()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL
        killed += 1
    assert killed > 3
    assert os.listdir(tmp_path) == ["set"]
