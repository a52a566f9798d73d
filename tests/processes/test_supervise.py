"""A process that is watched ends with the one that watches it, and not before."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

WATCHED = """
import pathlib, signal, sys, time
from plimsoll.processes.supervise import end_with
done, parent = pathlib.Path(sys.argv[1]), int(sys.argv[2])
signal.signal(signal.SIGTERM, lambda *_: (done.write_text("saved"), sys.exit(0)))
end_with(parent)
done.write_text("running")
time.sleep(600)
"""
WATCHES = f"""
import os, sys
from plimsoll.processes.supervise import watched
watched([sys.executable, "-c", {WATCHED!r}, sys.argv[1], str(os.getpid() + int(sys.argv[2]))])
"""


def start(path, other=0):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, "-c", WATCHES, str(path), str(other)], env=environment)


def until(path, words):
    deadline = time.monotonic() + 60
    while not path.exists() or path.read_text() != words:
        assert time.monotonic() < deadline, path.exists() and path.read_text()
        time.sleep(0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells of a parent's end on Linux alone")
def test_where_the_watching_process_is_killed_the_watched_one_is_told_and_saves(tmp_path):
    process = start(tmp_path / "done")
    until(tmp_path / "done", "running")
    process.kill()
    until(tmp_path / "done", "saved")
    assert process.wait() == -signal.SIGKILL


def test_what_begins_after_its_parents_end_does_not_begin(tmp_path):
    process = start(tmp_path / "done", other=1)
    process.wait(timeout=60)
    assert not (tmp_path / "done").exists()


STARTS_ANOTHER = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
KILLS = f"""
import subprocess, sys
from plimsoll.processes.supervise import watched
print(*watched([sys.executable, "-c", {STARTS_ANOTHER!r}], kill=True, stdin=subprocess.PIPE))
"""


def test_where_a_signal_kills_it_kills_all_that_was_started():
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", KILLS], env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"  # by the process that the watched one has started
    below = psutil.Process(process.pid).children(recursive=True)
    assert len(below) == 2
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60)[0] == "137 15\n"
    _, alive = psutil.wait_procs(below, timeout=60)
    assert [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []
