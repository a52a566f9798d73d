"""Turns this process into the one that trains, by exec: same process id, a resident set that starts from nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from pathlib import Path

from plimsoll.processes import interruption


@dataclasses.dataclass(frozen=True)
class Ready:
    """A run that is prepared and planned: what to start, and the lock that it is to hold."""

    command: list[str]
    environment: dict[str, str]
    lock: int


def become(ready: Ready) -> None:
    """Turns this process into that one: same PID, a resident set that starts from nothing. Does not return.

    Of what is open, the standard streams and the run's lock go along: a device or a port would stay taken.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    interruption.hold()
    for descriptor in _open_descriptors() - {0, 1, 2, ready.lock}:
        with contextlib.suppress(OSError):  # the one that listed them
            os.set_inheritable(descriptor, False)
    os.execve(ready.command[0], ready.command, ready.environment)


def _open_descriptors() -> set[int]:
    listed = Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")
    return {int(name) for name in os.listdir(listed)}
