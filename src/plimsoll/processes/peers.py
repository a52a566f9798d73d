"""What became of the other processes of a run, said in one paragraph by those that are left.

A process that ends by an error of its own writes it where the others look. One that is killed, frozen or cut off is
missed by JAX, which then ends the others by SIGABRT: what it printed before is kept in a file, and read afterwards.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

LOST = 3
"""Exit code where another process is gone."""
ENDED = "ended"
"""Name under which the first process that ends by an error of its own writes it."""
LOOK_SECONDS = 1.0
OWN_WORDS_SECONDS = 5.0
"""Time that a process has to end by itself, with its own words, where another has ended by an error."""
PLACE = "plimsoll: this process, and the machines of all: "
"""How the line begins in which a process keeps its place among the others."""
LEAVING_SECONDS = LOOK_SECONDS + OWN_WORDS_SECONDS + 2
SILENT_SECONDS = 40
"""Time within which JAX ends a process where another is silent (`distributed.HEARTBEAT_SECONDS`), and somewhat more."""
KEPT_LINES = 30
"""Lines of what libraries have printed that are shown, at most."""
HEARTBEAT = re.compile(r"stopped sending heartbeats\):\n((?:.*\d+\n)+)")
"""JAX's words for processes that it misses, each on a line that ends with its number."""
BROKEN = ("Failed to send RPC to coordination service", "failed to connect to all addresses", "Socket closed")
"""JAX's words where the connection to the first process has ended."""
NO_ANSWER = re.compile(r"DEADLINE_EXCEEDED.*\s+RPC: /xla.coordination.CoordinationService")
"""JAX's words where the first process is silent."""
STATUS = "absl::Status: "
"""What stands before the reason where JAX ends a process."""


def keep_errors(file: int) -> None:
    """Redirects what libraries print as errors into a file; Python's own `sys.stderr` still prints.

    Args:
        file: Its descriptor. Our supervisor reads the file (`kept`).
    """
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
    os.dup2(file, 2)
    os.close(file)


@dataclass(frozen=True)
class Kept:
    """What a process that trained with others has left for its supervisor."""

    words: str
    """What libraries have printed as errors."""
    process: int | None = None
    """Number of the process; None where it has not met the others."""
    hosts: tuple[str, ...] = ()
    """Names of the machines of all processes."""


def keep_place(process: int, hosts: Sequence[str]) -> None:
    """Writes a process's number, and the names of all processes' machines, into the file of errors."""
    os.write(2, f"{PLACE}{json.dumps([process, *hosts])}\n".encode())


def kept(file: IO[bytes]) -> Kept:
    """Returns what the process has left in the file of errors."""
    file.seek(0)
    before, found, rest = file.read().decode("utf-8", "replace").partition(PLACE)
    place, _, after = rest.partition("\n")
    if not found:
        return Kept(before)
    process, *hosts = json.loads(place)
    return Kept(before + after, process, tuple(hosts))


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
    return lost([], hosts, _reason(words)) if "coordination" in words.lower() or STATUS in words else None


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


def _reason(words: str) -> str:
    """Returns JAX's reason, or the first line of what it says."""
    return words.rpartition(STATUS)[2].strip().partition("\n")[0][:200]


class Watch:
    """Looks whether another process has ended by an error of its own, in a thread, and tells the others of ours."""

    def __init__(self) -> None:
        self._board: Any = None
        self._process = 0
        self._hosts: Sequence[str] = ()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.scratch: list[Path] = []
        """Folders that are removed when the process ends."""

    def begin(self, board: Any, process: int, hosts: Sequence[str]) -> None:
        """Begins to look.

        Args:
            board: Store that all processes read (`training.distributed.Board`).
            process: Number of this process.
            hosts: Names of the machines of all processes.
        """
        self._board, self._process, self._hosts = board, process, hosts
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stops looking; call it before this process leaves the others."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def tell(self, said: str) -> None:
        """Tells the others by which error this process ends. The first waits: its end takes the store with it."""
        self._over.set()
        if self._board is None:
            return
        with contextlib.suppress(RuntimeError):  # another was first, or the store is gone
            self._board.write(ENDED, [self._process, said])
            if self._process == 0:
                time.sleep(LEAVING_SECONDS)

    def why(self, said: str) -> str:
        """Returns the paragraph of this process where working with the others has failed.

        Of more than two it waits for JAX to say who is gone, which ends this process before it returns.

        Args:
            said: The exception's words.
        """
        self._over.set()
        if ended := self._ended():
            return ended
        if explained := ended_by_jax(said, self._hosts, self._process):
            return explained
        if len(self._hosts) > 2:
            time.sleep(SILENT_SECONDS)
        other = [1 - self._process] if len(self._hosts) == 2 else []
        return lost(other, self._hosts, _reason(said))

    def _ended(self) -> str | None:
        """Returns the paragraph on another process that has ended by an error of its own; None where none has."""
        if self._board is None:
            return None
        with contextlib.suppress(RuntimeError):  # the store is gone: JAX will say so
            if found := self._board.latest(ENDED):
                number, said = found
                who = f"process {number} ({self._hosts[number]}), which trains with this one, has ended"
                return f"{who}. It says: {said.rstrip('.')}. Here {AFTERWARDS}"
        return None

    def _look(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            if (ended := self._ended()) and not self._over.wait(OWN_WORDS_SECONDS):
                print(f"error: {ended}", file=sys.stderr, flush=True)
                self.leave(LOST)

    def clear(self) -> None:
        """Removes the folders of `scratch`."""
        for folder in self.scratch:
            shutil.rmtree(folder, ignore_errors=True)

    def leave(self, code: int) -> NoReturn:
        """Ends this process: threads that still wait for the others are not joined."""
        self.clear()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
