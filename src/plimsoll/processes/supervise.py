"""A process that is started, watched to its end, and told once what its parent is told. Part of the joint."""

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
    """Its exit code, and whether we were told to stop: it is told so too, once, and saves.

    In a process group of its own, since a terminal sends Ctrl-C to all of ours, and a second one would end it at once.
    """
    told: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def forward(number: int, _frame: Any) -> None:
        told.append(number)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        process = subprocess.Popen(command, env=environment, process_group=0, pass_fds=pass_fds)
        if told:  # while it was being started
            process.send_signal(told[0])
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return (128 - code if code < 0 else code), bool(told)


def end_with(parent: int) -> None:
    """In the process that is watched: it saves and stops when `parent` is killed; on Linux. It holds across exec."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        raise SystemExit(128 + signal.SIGTERM)
