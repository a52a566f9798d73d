"""Supervision of a child process until its end. Signals to the supervisor are forwarded to the child."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from plimsoll.processes.interruption import NUMBERS

PR_SET_PDEATHSIG = 1
"""Linux's `prctl` option for the signal that a process gets when its parent ends."""
LOOK_SECONDS = 0.1
"""Seconds between two calls of the function `look` of `watched`."""


def watched(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    kill: bool = False,
    line: Callable[[str], None] | None = None,
    look: Callable[[], None] | None = None,
    **options: Any,
) -> tuple[int, int | None]:
    """Runs a child process to its end. Returns its exit code, and the first signal received meanwhile (or None).

    After an end by signal n, the exit code is 128 + n. The child has its own process group. In this process's group it
    would get Ctrl-C twice, from the terminal and from this process, and a second signal ends training without saving.
    Both processes ignore signals that this process ignored before.

    Args:
        command: Program and arguments.
        environment: Environment variables of the child; those of this process if left out.
        kill: True if a signal kills the child's process group; False if the signal is forwarded to the child.
        line: Called with each line that the child prints. If left out, the child inherits the standard streams.
        look: Called every `LOOK_SECONDS` while the child runs, and once after its end.
        options: Further arguments of `subprocess.Popen`, like its streams.

    Raises:
        BaseException: An error that `line` or `look` raised, except KeyboardInterrupt. It is raised after the child has
            received SIGINT and ended.
    """
    if line is not None:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8", "errors": "replace"}
    with _Forwarded(kill=kill) as signals:
        process = subprocess.Popen(command, env=environment, process_group=0, **options)
        signals.begin(process)
        code = _followed(process, line, look, signals)
    if code < 0:
        code = 128 - code
    return code, signals.first


class _Forwarded:
    """Handlers that forward the signals of this process to a supervised child process."""

    def __init__(self, *, kill: bool) -> None:
        self.kill = kill
        self.first: int | None = None
        self.process: subprocess.Popen[Any] | None = None
        self.handlers: dict[int, Any] = {}

    def __enter__(self) -> _Forwarded:
        if threading.current_thread() is threading.main_thread():  # Python allows handlers only there
            for number in NUMBERS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` ignores SIGHUP, for example
                    self.handlers[number] = signal.signal(number, self.send)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def begin(self, process: subprocess.Popen[Any]) -> None:
        """Sets the supervised process, and forwards a signal that arrived before the process was started."""
        self.process = process
        if self.first is not None:
            self.send(self.first)

    def send(self, number: int, _frame: Any = None) -> None:
        """Forwards a signal to the supervised process, or kills its process group, unless it has ended."""
        self.first = self.first or number
        if self.process is None or self.process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            if self.kill:
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.send_signal(number)


def _followed(
    process: subprocess.Popen[Any],
    line: Callable[[str], None] | None,
    look: Callable[[], None] | None,
    signals: _Forwarded,
) -> int:
    """Calls `line` and `look` until the process ends, and returns its exit code. If one fails, calls neither again."""
    # A thread reads the output, so that the process never waits for `line`.
    lines: deque[str] = deque()
    reader = threading.Thread(target=_read, args=(process.stdout, lines))
    if process.stdout is not None:
        reader.start()

    failure: BaseException | None = None
    ended = False
    while not ended:
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_SECONDS)
                if process.stdout is not None:
                    reader.join()
                ended = True
            while line is not None and lines and failure is None:
                line(lines.popleft())
            if look is not None and failure is None:
                look()
        except BaseException as problem:
            signals.send(signal.SIGINT)
            failure = failure or (None if isinstance(problem, KeyboardInterrupt) else problem)
    if failure is not None:
        raise failure
    return process.wait()


def _read(output: IO[str], lines: deque[str]) -> None:
    """Appends the lines of a pipe to `lines`, until the pipe closes."""
    with output:
        lines.extend(text.rstrip("\n") for text in output)


def end_with(parent: int) -> None:
    """Makes this process receive SIGTERM when its supervisor ends, also after an exec. Works on Linux only.

    Args:
        parent: Process id of the supervisor.

    Raises:
        SystemExit: The supervisor has ended already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        raise SystemExit(128 + signal.SIGTERM)
