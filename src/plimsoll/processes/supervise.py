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
    received: list[int] = []
    process: subprocess.Popen[Any] | None = None

    def forward(number: int, _frame: Any = None) -> None:
        received.append(number)
        if process is None or process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            if kill:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.send_signal(number)

    main = threading.current_thread() is threading.main_thread()  # no other thread may have handlers
    heard = [number for number in NUMBERS if main and signal.getsignal(number) is not signal.SIG_IGN]  # as by `nohup`
    before = {number: signal.signal(number, forward) for number in heard}
    try:
        if line is not None:
            options |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            options |= {"encoding": "utf-8", "errors": "replace"}
        process = subprocess.Popen(command, env=environment, process_group=0, **options)
        if received:  # while it was being started
            forward(received[0])
        code = process.wait() if line is None and look is None else _followed(process, line, look, forward)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return (128 - code if code < 0 else code), (received[0] if received else None)


def _followed(
    process: subprocess.Popen[Any],
    line: Callable[[str], None] | None,
    look: Callable[[], None] | None,
    forward: Callable[[int], None],
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
            forward(signal.SIGINT)
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
