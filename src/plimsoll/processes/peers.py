"""What became of the other processes of a run, said in one paragraph by those that are left.

A process that ends by an error of its own writes it where the others look. One that is killed, frozen or cut off is
missed by JAX, which then ends the others by SIGABRT: what it printed before is in a file, which our supervisor reads.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

LOST = 3
"""Exit code where another process is gone."""
ENDED = "ended"
"""Name under which the first process that ends by an error of its own, or at a signal before training, writes it."""
LOOK_SECONDS = 1.0
OWN_WORDS_SECONDS = 5.0
"""Time that a process has to end by itself, with its own words, where another has ended by an error."""
PLACE, ERRORS, OUTCOME = "place.json", "errors.txt", "outcome"
"""Files in which a process keeps, for its supervisor, its place among the others, what libraries print as errors, and
its exit code once nothing is left to do but to leave the others."""
LEAVING_SECONDS = LOOK_SECONDS + OWN_WORDS_SECONDS + 2
"""Time that the first process leaves to the others to read why it ends: its end takes the store with it."""
POLL_SECONDS = 0.2
SILENT_SECONDS = 40
"""Time within which JAX ends a process where another is silent (`distributed.HEARTBEAT_SECONDS`), and somewhat more."""
KEPT_LINES, KEPT_BYTES = 30, 2**18
"""Lines of what libraries have printed that are shown, and bytes that are read, from the end."""
HEARTBEAT = re.compile(r"stopped sending heartbeats\):\n((?:.*\d+\n)+)")
"""JAX's words for processes that it misses, each on a line that ends with its number."""
BROKEN = ("Failed to send RPC to coordination service", "failed to connect to all addresses", "Socket closed")
"""JAX's words where the connection to the first process has ended."""
NO_ANSWER = re.compile(r"DEADLINE_EXCEEDED.*\s+RPC: /xla.coordination.CoordinationService")
"""JAX's words where the first process is silent."""
STATUS = "absl::Status: "
"""What stands before the reason where JAX ends a process."""


def show(text: str) -> None:
    """Prints to `sys.stderr`. Where that is closed, full or read by nobody, this process must not end by it."""
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr is not None:
            print(text, file=sys.stderr, flush=True)


def show_error(paragraph: str) -> None:
    """Prints an error as the command line does (`show`)."""
    show(f"error: {paragraph}")


def open_streams() -> None:
    """Opens those of the standard streams that are closed (`2>&-`): another file would take their place."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(opened, True)
    os.close(opened)


def keep_errors(folder: Path) -> None:
    """Redirects what libraries print as errors into a file; Python's own `sys.stderr` still prints."""
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
    file = os.open(folder / ERRORS, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    os.dup2(file, 2)
    os.close(file)


def keep_place(folder: Path, process: int, hosts: Sequence[str]) -> None:
    """Keeps a process's number, and the names of all processes' machines."""
    with contextlib.suppress(OSError):  # a name that is missing then
        (folder / PLACE).write_text(json.dumps([process, *hosts]))


def keep_outcome(folder: Path, code: int) -> None:
    """Keeps the exit code of a process that has done all, which JAX may end while it leaves the others."""
    with contextlib.suppress(OSError):  # it ends as one that has lost another
        (folder / OUTCOME).write_text(str(code))


@dataclass(frozen=True)
class Kept:
    """Place and last words of a process that trained with others, for its supervisor."""

    words: str
    """The end of what libraries have printed as errors."""
    process: int | None = None
    """Number of the process; None where it has not met the others."""
    hosts: tuple[str, ...] = ()
    """Names of the machines of all processes."""
    outcome: int | None = None
    """Exit code that the process was about to end with (`keep_outcome`); None where something was left to do."""


def kept(folder: Path) -> Kept:
    """Returns what the process has left in its folder."""
    words, process, hosts, outcome = "", None, (), None
    with contextlib.suppress(OSError), open(folder / ERRORS, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - KEPT_BYTES))
        words = file.read().decode("utf-8", "replace")
    with contextlib.suppress(OSError, ValueError):
        process, *hosts = json.loads((folder / PLACE).read_text())
    with contextlib.suppress(OSError, ValueError):
        outcome = int((folder / OUTCOME).read_text())
    return Kept(words, process, tuple(hosts), outcome)


def abridged(words: str) -> str:
    """Returns the last lines of what libraries have printed."""
    return "\n".join(words.rstrip().splitlines()[-KEPT_LINES:])


def ended_by_jax(words: str, hosts: Sequence[str] = (), process: int | None = None) -> str | None:
    """Returns the paragraph of a process that JAX has ended since another is gone; None where it says nothing of that.

    Args:
        words: What JAX has printed, or its exception.
        hosts: Names of the machines of all processes; empty where they are not known.
        process: Number of this process; None where it is not known.
    """
    if missed := HEARTBEAT.search(words):
        numbers = sorted({int(re.findall(r"\d+", line)[-1]) for line in missed[1].splitlines()})
        if process in numbers:
            return f"the others have given this process up, since they heard nothing of it for some time: {AFTERWARDS}"
        return lost(numbers, hosts, "nothing was heard of it any more" if len(numbers) == 1 else "they fell silent")
    if any(each in words for each in BROKEN):
        return lost([0], hosts, "the connection to it broke")
    if NO_ANSWER.search(words):
        return lost([0], hosts, "it does not answer any more")
    if STATUS not in words and "coordination" not in words.lower():
        return None
    other = [1 - process] if len(hosts) == 2 and process is not None else []
    return lost(other, hosts, words.partition(STATUS)[2].partition("\n")[0][:200] or "JAX's connection to it broke")


def failed_sum(problem: Exception) -> bool:
    """Returns whether a sum over processes has failed: JAX raises that as its own error, or as ValueError."""
    return isinstance(problem, ValueError) and any(each in str(problem) for each in ("Gloo", "NCCL"))


def lost(numbers: Sequence[int], hosts: Sequence[str], how: str) -> str:
    """Returns the paragraph of a process that stops since others are gone.

    Args:
        numbers: The processes that are gone; none where that is not known.
        hosts: Names of the machines of all processes; empty where they are not known.
        how: How that was noticed.
    """
    named = [f"{number} ({hosts[number]})" if number < len(hosts) else str(number) for number in numbers]
    if not named:
        return f"a process that trains with this one is gone ({how}): {AFTERWARDS}"
    if len(named) == 1:
        return f"process {named[0]}, which trains with this one, is gone ({how}): {AFTERWARDS}"
    who = f"{', '.join(named[:-1])} and {named[-1]}"
    return f"processes {who}, which train with this one, are gone ({how}): {AFTERWARDS}"


AFTERWARDS = (
    "nothing more can be summed, so this one stops. What was saved is whole: start all of them again with the same"
    " command, and they continue from there"
)


GONE = re.compile(r" (is|are) gone \(|given this process up")
"""Words of `lost` and `ended_by_jax`, and not those of `Watch` on a process that has said why it ends."""


def says_gone(line: str) -> bool:
    """Returns whether a line of a process says that others are gone, none of which has said why it ends."""
    return line.startswith("error: ") and line.endswith(AFTERWARDS) and GONE.search(line) is not None


def killed(number: int) -> str:
    """Returns the paragraph on a process that trained here and was ended by a signal that it did not ask for."""
    return f"the process that trained here was ended by {signal_name(number)}: {ALL_AGAIN}"


ALL_AGAIN = "what was saved is whole, and all processes of the run are to be started again, with the same options"


def signal_name(number: int) -> str:
    """Returns the name of a signal, like SIGSEGV."""
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


class Watch:
    """Thread that looks whether another process has ended by itself. It tells the others of the end of this one.

    Until training begins it also ends this process at a signal: what prepares and plans takes minutes, and asks for
    none.
    """

    def __init__(self) -> None:
        self._board: Any = None
        self._process, self._processes = 0, 1
        self._signal: Callable[[], int | None] = lambda: None
        self.hosts: Sequence[str] = ()
        """Names of the machines of all processes, once they are known."""
        self._over = threading.Event()
        self._stopping = False
        """Whether the thread ends this process at a signal."""
        self._thread: threading.Thread | None = None

    def begin(self, board: Any, process: int, processes: int, signal: Callable[[], int | None]) -> None:
        """Begins to look.

        Args:
            board: Store that all processes read (`training.distributed.Board`).
            process: Number of this process.
            processes: Number of all.
            signal: Function that returns the number of the signal that this process got, None without one.
        """
        self._board, self._process, self._processes, self._signal = board, process, processes, signal
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stops looking; call it when all are done, before this process leaves the others."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def training(self) -> None:
        """Leaves signals to training, which agrees on them with the others and saves."""
        self._signal = lambda: None

    def tell(self, said: str, code: int = LOST) -> None:
        """Tells the others why this process ends. The first one waits until they have ended, or could.

        Args:
            said: This process's words.
            code: Exit code of the others.
        """
        self._over.set()
        if self._board is None:
            return
        with contextlib.suppress(RuntimeError):  # another was first, or the store is gone
            self._board.write(ENDED, [self._process, socket.gethostname(), said, code])
        self._left()
        if self._process:
            return
        deadline = time.monotonic() + LEAVING_SECONDS
        others = set(range(1, self._processes))
        while others and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            with contextlib.suppress(RuntimeError):
                others -= {number for number in others if self._board.latest(f"left-{number}")}
        time.sleep(POLL_SECONDS)

    def _left(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._board.write(f"left-{self._process}", True)

    def why(self, said: str) -> tuple[str, int]:
        """Returns the paragraph of this process where working with the others has failed, and its exit code.

        Of more than two it waits for JAX to say who is gone, which ends this process before it returns. Where a signal
        ends this process, the others have heard of it first, and it does not return either.

        Args:
            said: The exception's words.
        """
        self._over.set()
        if self._stopping:
            assert self._thread is not None
            self._thread.join()
        if ended := self._ended():
            return ended
        if explained := ended_by_jax(said, self.hosts, self._process):
            return explained, LOST
        if len(self.hosts) > 2:
            time.sleep(SILENT_SECONDS)
        other = [1 - self._process] if len(self.hosts) == 2 else []
        return lost(other, self.hosts, said.strip().partition("\n")[0][:200]), LOST

    def _ended(self) -> tuple[str, int] | None:
        """Returns the paragraph on another process that has ended by itself, and our exit code; None where none has."""
        if self._board is None:
            return None
        with contextlib.suppress(RuntimeError):  # the store is gone: JAX will say so
            if found := self._board.latest(ENDED):
                number, host, said, code = found
                who = f"process {number} ({host}), which trains with this one, has ended"
                return f"{who}. It says: {said.rstrip('.')}. Here {AFTERWARDS}", code
        return None

    def _look(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            if number := self._signal():
                self._stopping = True
                stopped = f"stopped by {signal_name(number)} before the first step"
                show_error(f"{stopped}: {ALL_AGAIN}")
                self.tell(stopped, 128 + number)
                leave(128 + number)
            if ended := self._ended():
                said, code = ended
                if code != LOST or not self._over.wait(OWN_WORDS_SECONDS):
                    show_error(said)
                    self._left()
                    leave(code)


def leave(code: int) -> NoReturn:
    """Ends this process: threads that still wait for the others are not joined."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
