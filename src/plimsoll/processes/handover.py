"""Handover by exec from planning to training: the process id stays the same, and planning's memory is released."""

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
    """Command, environment and lock of a training process that can now be started."""

    command: list[str]
    environment: Mapping[str, str]
    lock: int | None = None
    """File descriptor of the run's lock, which the training process inherits; None if that process takes the lock."""


def become(ready: Ready) -> NoReturn:
    """Replaces this process with the training process, and does not return. The run's lock stays held.

    The new process inherits only the standard streams and the lock, so that no device or port stays in use. Signals are
    blocked until the new process has its handlers.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    interruption.hold()
    listed = Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")
    for descriptor in {int(name) for name in os.listdir(listed)} - {0, 1, 2}:
        with contextlib.suppress(OSError):  # the descriptor of the listing itself is closed by now
            os.set_inheritable(descriptor, descriptor == ready.lock)
    os.execve(ready.command[0], ready.command, ready.environment)
