"""What the process really holds: its resident set now and at its highest, read from the kernel.

The budget on a CPU is `VmHWM`, the peak resident set: everything in it counts. `trim` gives back what compiling and
loading left in the allocator.
"""

import ctypes
import sys
import time
from pathlib import Path


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def resident_bytes() -> int:
    """Of this process, now."""
    if sys.platform != "linux":
        import psutil

        return psutil.Process().memory_info().rss
    return _status("VmRSS")


def peak_resident_bytes() -> int:
    """The most this process ever held (Linux: `VmHWM`; elsewhere `ru_maxrss`)."""
    if sys.platform != "linux":
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return _status("VmHWM")


def settle(*, patience: float = 0.03, interval: float = 5e-4) -> None:
    """Waits until the resident set stops falling: the kernel takes milliseconds to take back large buffers."""
    deadline = time.perf_counter() + patience
    lowest, still = _pages(), 0
    while still < 3 and time.perf_counter() < deadline:
        time.sleep(interval)
        now = _pages()
        still = still + 1 if now >= lowest else 0
        lowest = min(lowest, now)


def _pages() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1])


def trim() -> None:
    """Returns freed heap to the system: a compile leaves 90-140 MiB of it behind. Does nothing without glibc."""
    if sys.platform == "linux":
        trim_heap = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim_heap is not None:
            trim_heap(0)
