"""What a process says of the others, by what JAX prints and by what they have written, and how it ends then."""

import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from plimsoll.processes import peers

HOSTS, HERE = ("a", "b", "c"), socket.gethostname()
ENDS_ITS_THREAD = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
"""For a test with `exits`."""
MISSED = """E1127 03:22:07 3985 coordination_service.cc:1549] Use error polling to propagate this to all tasks: \
UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):
{}
The tasks have crashed. Check the task logs for an earlier error, or scheduler events to debug further.
F1127 03:22:07 3996 client.h:80] Terminating process. absl::Status: UNAVAILABLE: The following tasks are unhealthy
*** Check failure stack trace: ***
"""
BROKEN = "F1127 client.h:80] absl::Status: UNAVAILABLE: Failed to send RPC to coordination service. Either the leader"
SILENT = """F1127 client.h:80] absl::Status: DEADLINE_EXCEEDED: Deadline Exceeded

RPC: /xla.coordination.CoordinationService/Heartbeat
"""
UNKNOWN = "x\nF client.h] absl::Status: INTERNAL: who knows\n*** stack"
SILENCE = "nothing was heard of it any more"


def gone(who, how):
    return f"process {who}, which trains with this one, is gone ({how})"


@pytest.mark.parametrize(
    ("words", "process", "said"),
    [
        (MISSED.format("1"), 0, gone("1 (b)", SILENCE)),
        (MISSED.format("/job:jax_worker/replica:0/task:1"), 0, gone("1 (b)", SILENCE)),
        (MISSED.format("1\n2"), 0, "processes 1 (b) and 2 (c), which train with this one, are gone (they fell silent)"),
        (MISSED.format("1"), 1, "the others have given this process up, since they heard nothing of it for some time"),
        (BROKEN, 1, gone("0 (a)", "the connection to it broke")),
        (SILENT, 1, gone("0 (a)", "it does not answer any more")),
        (UNKNOWN, 1, "a process that trains with this one is gone (INTERNAL: who knows)"),
        ("x coordination y", 1, "a process that trains with this one is gone (JAX's connection to it broke)"),
    ],
)
def test_which_process_is_gone_by_what_jax_prints(words, process, said):
    paragraph = peers.ended_by_jax(words, HOSTS, process)
    assert paragraph.startswith(f"{said}: nothing more can be summed, so this one stops.")
    assert "\n" not in paragraph


def test_an_abort_of_something_else_is_not_taken_for_a_process_that_is_gone():
    assert peers.ended_by_jax("F1127 array.cc:12] Check failed: 1 == 2", HOSTS, 0) is None


@ENDS_ITS_THREAD
def test_a_line_says_that_others_are_gone_and_not_that_one_has_ended(board, exits, capfd):
    for words, process in ((MISSED.format("1"), 0), (MISSED.format("1\n2"), 0), (MISSED.format("1"), 1), (BROKEN, 1)):
        assert peers.says_gone(f"error: {peers.ended_by_jax(words, HOSTS, process)}")
    board.write(peers.ENDED, [1, "b", "the loss is NaN", 3])
    watching(board, 0)._thread.join(30)
    said = capfd.readouterr().err.splitlines()[0]
    assert "has ended. It says: the loss is NaN" in said
    assert not peers.says_gone(said)
    assert not peers.says_gone("error: the disk is gone (full)")


def test_a_sum_that_fails_is_told_from_a_wrong_value():
    said = "UNKNOWN: Gloo all-reduce failed: [pair.cc:547] Connection closed by peer [127.0.0.1]:6279"
    assert peers.failed_sum(ValueError(said))
    assert not peers.failed_sum(ValueError("not a number"))


def test_of_two_it_is_the_other_one_whatever_jax_prints():
    assert peers.ended_by_jax(UNKNOWN, ("a", "b"), 0).startswith(gone("1 (b)", "INTERNAL: who knows"))


def test_a_host_that_is_not_known_is_not_named():
    assert peers.ended_by_jax(BROKEN).startswith("process 0, which trains")


def ran(script, *arguments, **streams):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", f"import os, sys\nfrom plimsoll.processes import peers\n{script}", *arguments]
    return subprocess.run(command, env=environment, text=True, check=True, **streams)


def test_what_libraries_print_is_kept_and_what_python_prints_is_shown(tmp_path):
    script = """
from pathlib import Path
peers.keep_errors(Path(sys.argv[1]))
os.write(2, b'one\\n')
peers.keep_place(Path(sys.argv[1]), 1, ['a', 'b'])
print('shown', file=sys.stderr)
"""
    assert ran(script, str(tmp_path), stderr=subprocess.PIPE).stderr == "shown\n"
    assert peers.kept(tmp_path) == peers.Kept("one\n", 1, ("a", "b"))


def test_of_one_that_met_nobody_there_are_words_alone(tmp_path):
    assert peers.kept(tmp_path) == peers.Kept("")
    (tmp_path / peers.ERRORS).write_bytes(b"x" * 2 * peers.KEPT_BYTES + b"end")
    assert peers.kept(tmp_path) == peers.Kept("x" * (peers.KEPT_BYTES - 3) + "end")


def test_an_error_that_nobody_reads_ends_nothing():
    with open("/dev/full", "w") as full:
        ran("peers.show_error('x')\nos.write(1, b'on')", stderr=full, stdout=subprocess.DEVNULL)


def test_closed_streams_are_not_taken_by_other_files():
    script = "os.close(2)\npeers.open_streams()\nprint(os.open('/dev/null', 0), os.get_inheritable(2))"
    assert ran(script, stdout=subprocess.PIPE).stdout == "3 True\n"


def test_a_signal_that_nobody_asked_for_is_named():
    assert peers.killed(11).startswith("the process that trained here was ended by SIGSEGV: what was saved")
    assert peers.killed(200).startswith("the process that trained here was ended by signal 200: ")


def test_only_the_last_lines_are_shown():
    lines = [str(number) for number in range(100)]
    assert peers.abridged("\n".join(lines) + "\n").splitlines() == lines[-peers.KEPT_LINES :]


class Board:
    """Values under names that are used once."""

    def __init__(self):
        self.values = {}

    def write(self, name, value):
        if name in self.values:
            raise RuntimeError("ALREADY_EXISTS")
        self.values[name] = value

    def latest(self, name):
        return self.values.get(name)


@pytest.fixture
def board(monkeypatch):
    monkeypatch.setattr(peers, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(peers, "OWN_WORDS_SECONDS", 0.02)
    monkeypatch.setattr(peers, "LEAVING_SECONDS", 0.1)
    monkeypatch.setattr(peers, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(peers, "SILENT_SECONDS", 0.01)
    return Board()


@pytest.fixture
def exits(monkeypatch):
    """Exit codes by threads: each ends alone."""
    codes = {}

    def leave(code):
        codes[threading.current_thread()] = code
        raise SystemExit

    monkeypatch.setattr(os, "_exit", leave)
    return codes


def watching(board, process, hosts=HOSTS, signal=lambda: None):
    watch = peers.Watch()
    watch.begin(board, process, len(hosts), signal)
    watch.hosts = hosts
    return watch


@ENDS_ITS_THREAD
def test_the_error_that_ended_one_ends_another_that_waits_for_it(board, exits, capfd):
    waits = watching(board, 0)
    watching(board, 2).tell("the disk is full. Make room")
    waits._thread.join(30)
    assert exits[waits._thread] == 3
    said = capfd.readouterr().err
    assert said.startswith(
        f"error: process 2 ({HERE}), which trains with this one, has ended. It says: the disk is full. Make"
    )


@ENDS_ITS_THREAD
@pytest.mark.parametrize(("told", "other"), [(0, 1), (1, 0)])
def test_a_signal_before_training_ends_both_with_its_number(board, exits, monkeypatch, capfd, told, other):
    """Whoever got it: what prepares and plans in the first one asks for no signal."""
    monkeypatch.setattr(peers, "OWN_WORDS_SECONDS", 600)
    monkeypatch.setattr(peers, "LEAVING_SECONDS", 600)
    waits = watching(board, other, ("a", "b"))
    stopped = watching(board, told, ("a", "b"), lambda: signal.SIGTERM)
    for each in (stopped, waits):
        each._thread.join(30)
        assert exits[each._thread] == 143
    said = capfd.readouterr().err
    assert "error: stopped by SIGTERM before the first step: what was saved is whole, and all processes" in said
    assert f"process {told} ({HERE}), which trains with this one, has ended. It says: stopped by SIGTERM" in said


@ENDS_ITS_THREAD
def test_what_fails_as_the_others_end_at_a_signal_has_its_number_too(board, exits):
    """The others' end takes the store with it: what waits there fails before the thread ends this process."""
    told, failed = threading.Event(), []

    class Slow(Board):
        def write(self, name, value):
            told.set()
            super().write(name, value)
            while not failed:
                threading.Event().wait(0.001)

    stopped = watching(Slow(), 1, ("a", "b"), lambda: signal.SIGINT)
    assert told.wait(30)

    def fail():
        failed.append(threading.current_thread())
        stopped.why("Socket closed")
        exits["after"] = stopped._thread.is_alive()

    main = threading.Thread(target=fail)
    main.start()
    main.join(30)
    assert exits == {stopped._thread: 130, "after": False}

    other = watching(board, 0, ("a", "b"))
    board.write(peers.ENDED, [1, "b", "stopped by SIGINT", 130])
    assert other.why("Socket closed")[1] == 130


def test_a_signal_after_that_is_left_to_training(board, monkeypatch):
    monkeypatch.setattr(os, "_exit", lambda code: pytest.fail("it was ended"))
    number = None
    watch = watching(board, 0, signal=lambda: number)
    watch.training()
    number = signal.SIGTERM
    watch._thread.join(0.1)
    watch.end()
    assert not board.values


def test_one_that_ends_itself_in_time_keeps_its_own_words(board, monkeypatch):
    monkeypatch.setattr(peers, "OWN_WORDS_SECONDS", 600)
    monkeypatch.setattr(os, "_exit", lambda code: pytest.fail("it was ended"))
    waits = watching(board, 0)
    board.write(peers.ENDED, [1, "b", "over the budget", 3])
    waits.tell("over the budget")
    waits._thread.join(30)
    assert not waits._thread.is_alive()
    assert board.values[peers.ENDED] == [1, "b", "over the budget", 3]  # the first one's


def test_a_failed_sum_is_explained_by_the_error_of_the_other(board):
    watch = watching(board, 0)
    board.write(peers.ENDED, [1, "b", "no memory", 3])
    said, code = watch.why("Gloo: connection closed")
    assert said.startswith("process 1 (b), which trains with this one, has ended. It says: no")
    assert code == 3


def test_of_two_it_is_the_other_one_that_is_gone(board):
    watch = watching(board, 1, ("a", "b"))
    said, code = watch.why("Gloo: connection closed\nmore")
    assert said.startswith("process 0 (a), which trains with this one, is gone (Gloo: connection closed)")
    assert code == 3


def test_of_three_nobody_is_guessed(board):
    said, _ = watching(board, 1).why("Gloo: closed")
    assert said.startswith("a process that trains with this one is gone (Gloo: closed)")


def test_the_first_one_waits_until_the_others_have_left(board, monkeypatch):
    monkeypatch.setattr(peers, "LEAVING_SECONDS", 600)
    first = watching(board, 0)
    telling = threading.Thread(target=first.tell, args=["no memory"])
    telling.start()
    for number in (1, 2):
        watching(board, number).tell("its own words")
    telling.join(30)
    assert not telling.is_alive()


def test_before_they_have_met_an_error_is_nobodys_business(board):
    peers.Watch().tell("no such recipe")
    assert not board.values
