"""A process that is supervised to its end. It gets every signal that its supervisor gets, once."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1


def watched(
    command: Sequence[str], environment: Mapping[str, str] | None = None, *, kill: bool = False, **options: Any
) -> tuple[int, int | None]:
    """Runs a process to its end. Returns its exit code, and the first signal that we got meanwhile, or None.

    It runs in a process group of its own: a terminal sends Ctrl-C to the whole group, and a training process that gets
    a second signal ends without saving. A signal that our parent ignores stays ignored, in both processes.

    Args:
        command: Program and arguments.
        environment: Its variables; ours if left out.
        kill: Whether a signal kills it and all that it started; otherwise it is forwarded.
        options: Other arguments of `subprocess.Popen`, such as its streams.
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

    heard = [number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]  # `nohup` ignores one
    before = {number: signal.signal(number, forward) for number in heard}
    try:
        process = subprocess.Popen(command, env=environment, process_group=0, **options)
        if received:  # while it was being started
            forward(received[0])
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return (128 - code if code < 0 else code), (received[0] if received else None)


def end_with(parent: int) -> None:
    """Makes this process get SIGTERM when its supervisor is killed, also after an exec; on Linux alone.

    Args:
        parent: Process id of the supervisor. Raises SystemExit if it has ended already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        raise SystemExit(128 + signal.SIGTERM)
