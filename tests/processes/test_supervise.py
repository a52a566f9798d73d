"""A process that is watched ends with the one that watches it, and not before."""

import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from plimsoll.processes.supervise import watched
from programs import printed

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
    return subprocess.Popen([sys.executable, "-c", WATCHES, str(path), str(other)])


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
    process = subprocess.Popen([sys.executable, "-c", KILLS], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "1\n"  # by the process that the watched one has started
    below = psutil.Process(process.pid).children(recursive=True)
    assert len(below) == 2
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60)[0] == "137 15\n"
    _, alive = psutil.wait_procs(below, timeout=60)
    assert [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []


UNTIL_INTERRUPTED = """
import signal, sys
signal.signal(signal.SIGINT, lambda *_: (print("saved", flush=True), sys.exit(130)))
print("ready", flush=True)
signal.pause()
"""


@pytest.mark.parametrize("where", ["line", "look"])
def test_what_a_callback_raises_is_raised_once_the_process_has_saved(where):
    lines = []

    def line(text):
        lines.append(text)
        if where == "line":
            raise ValueError("of the caller")

    def look():
        if where == "look" and lines:
            raise ValueError("of the caller")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError, match=r"^of the caller$"):
        watched([sys.executable, "-c", UNTIL_INTERRUPTED], line=line, look=look)
    assert lines == ["ready"]  # after a failure nothing is called
    assert signal.getsignal(signal.SIGINT) is before


def test_it_is_looked_at_while_it_runs_and_once_after():
    looks = []
    code, received = watched([sys.executable, "-c", "import time; time.sleep(0.35)"], look=lambda: looks.append(1))
    assert (code, received) == (0, None)
    assert len(looks) >= 2


def test_lines_come_whole_and_the_last_one_without_its_end():
    lines = []
    program = "import sys; sys.stdout.buffer.write(b'a' * 100_000 + bytes([10, 98, 233, 10]) + b'c')"
    watched([sys.executable, "-c", program], line=lines.append)
    assert lines == ["a" * 100_000, "b\ufffd", "c"]


def test_a_thread_that_may_have_no_handlers_watches_too():
    codes = []
    thread = threading.Thread(target=lambda: codes.append(watched([sys.executable, "-c", "exit(3)"])))
    thread.start()
    thread.join()
    assert codes == [(3, None)]


def test_a_signal_is_handed_on_once_and_the_code_is_the_childs():
    waits = (
        "import signal as s, sys, time; s.signal(15, lambda *_: sys.exit(143)); print(1, flush=True); time.sleep(60)"
    )
    program = (
        "import sys; from plimsoll.processes.supervise import watched\n"
        f"print(*watched([sys.executable, '-c', {waits!r}]))"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "1\n"  # the child is there, and listens
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60)[0] == "143 15\n"
    killed = watched([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    assert killed == (137, None)


def test_a_signal_that_is_ignored_stays_ignored():
    """As SIGHUP under `nohup`: the watching process would hand it on, and the watched one end."""
    says = "import signal; print(signal.getsignal(signal.SIGHUP))"
    program = (
        "import signal, sys; from plimsoll.processes.supervise import watched\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        f"watched([sys.executable, '-c', {says!r}])"
    )
    assert printed(program).strip() in ("Handlers.SIG_IGN", "1")
