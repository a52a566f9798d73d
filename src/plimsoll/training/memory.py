"""Current and peak resident set of this process, and functions that release freed memory to the system.

The peak resident set (`VmHWM`) counts against the budget on a CPU. `trim` releases the memory that compiling and
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
"""Growth of the resident set between steps, in bytes, after which the heap is trimmed."""
SMALLEST_MAPPED = ALLOCATOR["glibc.malloc.mmap_threshold"]
"""Smallest buffer, in bytes, that malloc maps by `mmap` and returns to the system when it is freed."""
LOOK_SECONDS = 0.02
"""Seconds between readings of the resident set and its peak during training. A reading takes 40 us, about as long as a
step of a small model. The kernel keeps the peak, so less frequent readings miss none."""
FILE = re.compile("/(?!dev/|memfd:)")
"""Pattern of the name of a mapped regular file. It matches neither devices nor anonymous memory files."""
_MADV_DONTNEED = 4


def resident_bytes() -> int:
    """Returns the resident set of this process in bytes."""
    if sys.platform != "linux":
        import psutil

        return psutil.Process().memory_info().rss
    with open("/proc/self/statm", "rb") as file:  # four times as fast to read as `status`
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_resident_bytes() -> int:
    """Returns the peak resident set of this process in bytes (Linux: `VmHWM`; elsewhere `ru_maxrss`)."""
    if sys.platform != "linux":
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    with open("/proc/self/status", "rb") as file:
        return int(file.read().partition(b"VmHWM:")[2].split(maxsplit=1)[0]) * 1024


def settle(*, enough: int = 0, patience: float = 0.03, interval: float = 5e-4) -> int:
    """Waits until the resident set stops falling: the kernel takes milliseconds to reclaim large buffers.

    Args:
        enough: Resident bytes at which waiting ends at once.
        patience: Longest wait in seconds.
        interval: Seconds between readings.

    Returns:
        The lowest resident bytes that were read.
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
    """Releases freed heap and pages of library code to the system. Call it after loading, compiling or saving.

    A compile leaves 90 to 140 MiB of freed heap, and the start of the process about 125 MiB of library pages. Without
    glibc the heap is not trimmed. Library pages are dropped only in processes for the CPU (`GIVES_BACK`): an
    accelerator's driver must keep its mappings, and the budget of an accelerator is not the resident set.
    """
    if sys.platform == "linux":
        trim_heap()
        if GIVES_BACK in os.environ:
            give_back_libraries()


def trim_heap() -> None:
    """Releases freed heap memory to the system. Does nothing without glibc."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


class BetweenSteps:
    """Keeps the resident set low between steps: waits for freed buffers, and trims the heap when it has grown.

    Only mapped buffers are returned to the system when they are freed. `settle` waits only if the resident set suggests
    that such a buffer is not returned yet: a wait takes 2 ms or more, several steps of a small model.

    A data loader's small buffers fragment the heap, by 35 MiB in 900 steps of recipe `control` (notes, "Growth"). So
    the heap is trimmed after a growth of `GROWTH_BYTES`. Growth that trimming cannot undo is not trimmed again.
    """

    after_trimming: int | None = None
    """Resident bytes after the first step, or after the last trim of the heap."""
    _left: int = 0
    """Lowest resident bytes after a step; replaced by the newest if these are over `SMALLEST_MAPPED` higher."""

    def settle(self) -> None:
        """Waits for the freed buffers of a step, and trims the heap if the resident set has grown."""
        enough = self._left + SMALLEST_MAPPED
        left = settle(enough=enough)
        self._left = left if left > enough else min(left, self._left)
        if self.after_trimming is None:
            self.after_trimming = left
        elif left > self.after_trimming + GROWTH_BYTES:
            trim_heap()
            self.after_trimming = self._left = settle()


def give_back_libraries() -> None:
    """Drops pages of library code from the resident set. About 20 MiB are used again, and reload from the page cache.

    Only read-only mappings of regular files without any modified (anonymous) page are dropped, so no data can be lost.
    The system could reclaim such pages at any time, yet they count as resident and so against the budget.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    start = end = resident = anonymous = 0
    library = False
    for line in [*Path("/proc/self/smaps").read_text().splitlines(), "0-0 end 0 0 0 "]:
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):  # first line of a mapping: drop the previous one
            if library and not anonymous and resident:
                libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_DONTNEED)
            start, end = (int(part, 16) for part in words[0].split("-"))
            library = words[1][:3] in ("r-x", "r--") and FILE.match("".join(words[5:6])) is not None
        elif words[0] == "Rss:":
            resident = int(words[1])
        elif words[0] == "Anonymous:":
            anonymous = int(words[1])
