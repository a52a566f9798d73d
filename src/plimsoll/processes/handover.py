"""Handover by exec from the process that plans to the one that trains: same process id, memory starts from zero."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from plimsoll.processes import interruption


@dataclasses.dataclass(frozen=True)
class Ready:
    """Training process of a run that is prepared and planned: its command, environment and lock."""

    command: list[str]
    environment: dict[str, str]
    lock: int
    """File descriptor of the run's lock, which the process inherits."""


def become(ready: Ready) -> NoReturn:
    """Replaces this process by the training process. Does not return. The run's lock stays held."""
    replace_process(ready.command, ready.environment, {ready.lock})


def replace_process(command: Sequence[str], environment: Mapping[str, str], inherited: Collection[int]) -> NoReturn:
    """Replaces this process by another program. Does not return.

    Of the open files only the standard streams and those named are inherited: a device or a port would stay taken.
    Signals are held back until the new process has its handlers.

    Args:
        command: Program and arguments.
        environment: Its variables.
        inherited: Descriptors that it inherits.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    interruption.hold()
    listed = Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")
    for descriptor in {int(name) for name in os.listdir(listed)} - {0, 1, 2}:
        with contextlib.suppress(OSError):  # the descriptor by which they were listed
            os.set_inheritable(descriptor, descriptor in inherited)
    os.execve(command[0], [*command], environment)
