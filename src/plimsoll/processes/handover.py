"""Handover by exec from the process that plans to the one that trains: same process id, memory starts from zero."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from plimsoll.processes import interruption


@dataclasses.dataclass(frozen=True)
class Ready:
    """Training process of a run that is prepared and planned: its command, environment and lock."""

    command: list[str]
    environment: Mapping[str, str]
    lock: int | None = None
    """File descriptor of the run's lock, which the process inherits; None where it takes the lock itself."""


def become(ready: Ready) -> NoReturn:
    """Replaces this process by the training process. Does not return. The run's lock stays held.

    Of the open files only the standard streams and the lock are inherited: a device or a port would stay taken.
    Signals are held back until the new process has its handlers.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    interruption.hold()
    listed = Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")
    for descriptor in {int(name) for name in os.listdir(listed)} - {0, 1, 2}:
        with contextlib.suppress(OSError):  # the descriptor by which they were listed
            os.set_inheritable(descriptor, descriptor == ready.lock)
    os.execve(ready.command[0], ready.command, ready.environment)
