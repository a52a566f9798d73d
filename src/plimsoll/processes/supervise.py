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
    command: Sequence[str], environment: Mapping[str, str] | None = None, *, pass_fds: Sequence[int] = ()
) -> tuple[int, bool]:
    """Runs a process to its end. Returns its exit code, and whether a signal was forwarded to it.

    It runs in a process group of its own: a terminal sends Ctrl-C to the whole group, and a training process that gets
    a second signal ends without saving.

    Args:
        command: Program and arguments.
        environment: Its variables; ours if left out.
        pass_fds: File descriptors that it inherits.
    """
    received: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def forward(number: int, _frame: Any) -> None:
        received.append(number)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        process = subprocess.Popen(command, env=environment, process_group=0, pass_fds=pass_fds)
        if received:  # while it was being started
            process.send_signal(received[0])
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return (128 - code if code < 0 else code), bool(received)


def end_with(parent: int) -> None:
    """Makes this process get SIGTERM when its supervisor is killed, also after an exec; on Linux alone.

    Args:
        parent: Process id of the supervisor. Raises SystemExit if it has ended already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        raise SystemExit(128 + signal.SIGTERM)
