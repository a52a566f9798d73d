"""Whether an error is an allocator's refusal, and what that allocator had given out.

On a GPU the allocator's limit is the budget; on a CPU the system refuses where an address-space limit is in force.
"""

from __future__ import annotations

import jax

from plimsoll.training import memory


def refused(problem: BaseException) -> bool:
    """XLA's error with the status RESOURCE_EXHAUSTED, or Python's own: no other error, whatever its text says."""
    if isinstance(problem, MemoryError):
        return True
    return isinstance(problem, jax.errors.JaxRuntimeError) and str(problem).startswith("RESOURCE_EXHAUSTED:")


def peak_bytes() -> int:
    """The most the fullest device held; on a CPU, which counts none of it, the peak resident set."""
    stats = [device.memory_stats() for device in jax.local_devices()]
    counted = [found["peak_bytes_in_use"] for found in stats if found and "peak_bytes_in_use" in found]
    return max(counted) if counted else memory.peak_resident_bytes()
