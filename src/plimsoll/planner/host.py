"""What this machine can really give: its cores, its free bytes, and the limits of this process's control groups."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from plimsoll.units import GIB, MIB

COMPILER_BYTES = 3 * GIB
"""Memory that one compile process may come to: 0.5 to 1.5 GiB were seen (notes, "Plans in seconds")."""
NO_LIMIT = 2**60
"""Bytes that stand for no limit: control groups write a number close to 2^63."""


def cores() -> int:
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def margin_bytes(available: int) -> int:
    """Returns what is left to others when no budget is given: a tenth, at least 256 MiB, at most 2 GiB."""
    return min(max(available // 10, 256 * MIB), 2 * GIB)


def available_bytes(root: Path = Path("/")) -> int:
    """Returns the free memory of the machine, or what the control groups still allow, whichever is less."""
    return min(psutil.virtual_memory().available, cgroup_room(root))


def compilers() -> int:
    """Returns how many compile processes this machine has cores and memory for, at least one.

    One keeps two cores busy: of two on two cores each took twice as long (notes, "Plans in seconds").
    """
    return max(1, min(cores() // 2, available_bytes() // COMPILER_BYTES))


def cgroup_room(root: Path = Path("/")) -> int:
    """Returns the bytes up to the tightest memory limit (cgroup v1 or v2) of our group and its parents, or NO_LIMIT."""
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
