"""A process that is supervised to its end. It gets every signal that its supervisor gets, once."""

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
LOOK_SECONDS = 0.1
"""Time between two calls of `look`."""


def watched(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    kill: bool = False,
    line: Callable[[str], None] | None = None,
    look: Callable[[], None] | None = None,
    **options: Any,
) -> tuple[int, int | None]:
    """Runs a process to its end. Returns its exit code, and the first signal that we got meanwhile, or None.

    It runs in a process group of its own: a terminal sends Ctrl-C to the whole group, and a training process that gets
    a second signal ends without saving. A signal that our parent ignores stays ignored, in both processes.

    Args:
        command: Program and arguments.
        environment: Its variables; ours if left out.
        kill: Whether a signal kills it and all that it started; otherwise it is forwarded.
        line: Function that is called with each line that it prints; without it, the process has our streams.
        look: Function that is called every `LOOK_SECONDS` while it runs, and once after it has ended.
        options: Other arguments of `subprocess.Popen`, such as its streams.

    Raises:
        BaseException: What `line` or `look` has raised, but for KeyboardInterrupt: the process gets SIGINT then, and is
            waited for.
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
    """Signals that reach this process while it supervises another one, which gets them."""

    def __init__(self, *, kill: bool) -> None:
        self.kill = kill
        self.first: int | None = None
        self.process: subprocess.Popen[Any] | None = None
        self.handlers: dict[int, Any] = {}

    def __enter__(self) -> _Forwarded:
        if threading.current_thread() is threading.main_thread():  # no other thread may have handlers
            for number in NUMBERS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as by `nohup`
                    self.handlers[number] = signal.signal(number, self.send)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def begin(self, process: subprocess.Popen[Any]) -> None:
        """Takes the process that is supervised, and sends it what came while it was being started."""
        self.process = process
        if self.first is not None:
            self.send(self.first)

    def send(self, number: int, _frame: Any = None) -> None:
        """Sends a signal to the process, unless it has ended."""
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
    """Calls `line` and `look` until the process has ended, and returns its exit code. The first failure ends both."""
    # A thread reads what it prints, so that neither waits for the other.
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
    """Adds the lines of a pipe until its end."""
    with output:
        lines.extend(text.rstrip("\n") for text in output)


def end_with(parent: int) -> None:
    """Makes this process get SIGTERM when its supervisor is killed, also after an exec; on Linux alone.

    Args:
        parent: Process id of the supervisor. Raises SystemExit if it has ended already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        raise SystemExit(128 + signal.SIGTERM)
