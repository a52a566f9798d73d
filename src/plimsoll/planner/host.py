"""Cores and free memory of this machine, within the limits of this process's control groups."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from plimsoll.units import GIB, MIB

COMPILER_BYTES = 3 * GIB
"""Memory reserved for one compile process. Measured: 0.5 to 1.5 GiB (notes, "Plans in seconds")."""
NO_LIMIT = 2**60
"""A control group's limit of this many bytes or more counts as none. Groups without a limit report nearly 2^63."""


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def margin_bytes(available: int) -> int:
    """Returns the bytes left to other processes if there is no budget: 10 % of `available`, from 256 MiB to 2 GiB."""
    return min(max(available // 10, 256 * MIB), 2 * GIB)


def available_bytes(root: Path = Path("/")) -> int:
    """Returns the free memory of the machine in bytes, or the free memory of the control groups if that is less."""
    return min(psutil.virtual_memory().available, cgroup_room(root))


def compilers() -> int:
    """Returns the number of compile processes that this machine has cores and memory for, at least one.

    A compile process keeps two cores busy: with two of them on two cores, each took twice as long (notes, "Plans in
    seconds").
    """
    return max(1, min(cores() // 2, available_bytes() // COMPILER_BYTES))


def cgroup_room(root: Path = Path("/")) -> int:
    """Returns the bytes left below the tightest memory limit of this process's control group and its parents.

    Reads cgroup v1 and v2. Returns NO_LIMIT if there is no limit.
    """
    rooms = [NO_LIMIT]
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return NO_LIMIT
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            rooms += _rooms(root / "sys/fs/cgroup", path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            rooms += _rooms(root / "sys/fs/cgroup/memory", path, *names)
    return min(rooms)


def _rooms(mount: Path, path: str, limit_name: str, usage_name: str, reclaimable: str) -> list[int]:
    rooms = []
    group = mount / path.lstrip("/")
    for folder in [group, *group.parents]:
        if not folder.is_relative_to(mount):
            break
        limit = _number(folder / limit_name)
        if limit is not None and limit < NO_LIMIT:
            used = _number(folder / usage_name) or 0
            try:
                statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            except (OSError, ValueError):
                statistics = {}
            rooms.append(max(0, limit - used + int(statistics.get(reclaimable, 0))))
    return rooms


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
