"""The resident set of this process, now and at most, read from the kernel; and how to give memory back.

The budget on a CPU is `VmHWM`, the peak resident set: everything in it counts. `trim` gives back what compiling and
loading left in the allocator.
"""

import ctypes
import os
import re
import sys
import time
from pathlib import Path

from plimsoll.processes.environment import ALLOCATOR, GIVES_BACK

GROWTH_BYTES = 4 * 2**20
SMALLEST_MAPPED = ALLOCATOR["glibc.malloc.mmap_threshold"]
"""Bytes of the smallest buffer that is mapped, and goes back to the system when it is freed."""
LOOK_SECONDS = 0.02
"""Seconds between looks at the resident set and its peak while steps are taken. A look costs 40 us, and a step of a
small model hardly more; the kernel counts the peak all the same, so a later look misses nothing of it."""
FILE = re.compile("/(?!dev/|memfd:)")
"""Beginning of a mapping's name that is a file's, and not a device's or one of memory alone."""
_MADV_DONTNEED = 4


def resident_bytes() -> int:
    """Returns the bytes that this process holds now."""
    if sys.platform != "linux":
        import psutil

        return psutil.Process().memory_info().rss
    with open("/proc/self/statm", "rb") as file:  # a quarter of the time that `status` takes
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_resident_bytes() -> int:
    """Returns the most this process ever held (Linux: `VmHWM`; elsewhere `ru_maxrss`)."""
    if sys.platform != "linux":
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    with open("/proc/self/status", "rb") as file:
        return int(file.read().partition(b"VmHWM:")[2].split(maxsplit=1)[0]) * 1024


def settle(*, enough: int = 0, patience: float = 0.03, interval: float = 5e-4) -> int:
    """Waits until the resident set stops falling, or is at most `enough` bytes, and returns the bytes that are left.

    The kernel takes milliseconds to take back large buffers.
    """
    if sys.platform != "linux":
        return resident_bytes()
    deadline = time.perf_counter() + patience
    lowest, still = resident_bytes(), 0
    while still < 3 and lowest > enough and time.perf_counter() < deadline:
        time.sleep(interval)
        now = resident_bytes()
        still = still + 1 if now >= lowest else 0
        lowest = min(lowest, now)
    return lowest


def trim() -> None:
    """Gives back what loading, compiling, saving or evaluating left: freed heap, and library code that it touched.

    A compile leaves 90-140 MiB of heap behind, starting about 125 MiB of library pages. Does nothing without glibc.
    Library code is left alone unless the process was started for this CPU (`GIVES_BACK`): a driver's mappings must not
    be touched, and beside an accelerator the resident set is not the budget.
    """
    if sys.platform == "linux":
        trim_heap()
        if GIVES_BACK in os.environ:
            give_back_libraries()


def trim_heap() -> None:
    """Gives back what is free in the heap. Does nothing without glibc."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


class BetweenSteps:
    """Waits until a step's buffers have gone back, and trims the heap when what is left has grown by `GROWTH_BYTES`.

    Only buffers that are mapped go back by themselves. Where less than the smallest of them is held beyond what was
    left before, nothing is waited for: looking whether it still falls takes 2 ms, several steps of a small model.

    A loader's small buffers come and go between those of the steps, and the holes they leave are not always filled: of
    `control`, 35 MiB in 900 steps (notes, "Growth"). Growth that is needed is trimmed for once.
    """

    after_trimming: int | None = None
    _left: int = 0
    """Bytes that were left after a step, the least since they were last waited for."""

    def settle(self) -> None:
        enough = self._left + SMALLEST_MAPPED
        left = settle(enough=enough)
        self._left = left if left > enough else min(left, self._left)
        if self.after_trimming is None:
            self.after_trimming = left
        elif left > self.after_trimming + GROWTH_BYTES:
            trim_heap()
            self.after_trimming = self._left = settle()


def give_back_libraries() -> None:
    """Unmaps pages of library code; what is needed again comes back from the page cache, about 20 MiB of it.

    Only read-only mappings of files without a single changed (anonymous) page are dropped, so nothing can be lost, and
    no device's. They were part of the resident set, which is the budget, though the system could have taken them any
    time.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    start = end = resident = anonymous = 0
    library = False
    for line in [*Path("/proc/self/smaps").read_text().splitlines(), "0-0 end 0 0 0 "]:
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):  # the next mapping begins
            if library and not anonymous and resident:
                libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_DONTNEED)
            start, end = (int(part, 16) for part in words[0].split("-"))
            library = words[1][:3] in ("r-x", "r--") and FILE.match("".join(words[5:6])) is not None
        elif words[0] == "Rss:":
            resident = int(words[1])
        elif words[0] == "Anonymous:":
            anonymous = int(words[1])
