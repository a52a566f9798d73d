"""The bytes that the budget counts, now and at most, and the errors of an allocator that refuses more.

On an accelerator they are the bytes its allocator has given out, and the allocator has the budget as its limit
(`environment.on_card`). On a CPU they are the resident set, and the system refuses only where an address-space limit
is in force.
"""

from __future__ import annotations

import jax

from plimsoll.training import memory


def refused(problem: BaseException) -> bool:
    """Returns whether an error is XLA's with the status RESOURCE_EXHAUSTED, or Python's MemoryError."""
    if isinstance(problem, MemoryError):
        return True
    return isinstance(problem, jax.errors.JaxRuntimeError) and str(problem).startswith("RESOURCE_EXHAUSTED:")


def device_lost(problem: BaseException) -> bool:
    """Returns whether an error is XLA's of a device that no longer answers: an error of CUDA, or a lost device.

    After one of CUDA's errors the process can run nothing more on the card, whichever it was.
    """
    if not isinstance(problem, jax.errors.JaxRuntimeError) or refused(problem):
        return False
    return "CUDA_ERROR_" in str(problem) or "device lost" in str(problem).lower()


def peak_bytes() -> int:
    """Returns the most the fullest device held; on a CPU, where none is counted, the peak resident set."""
    counted = device_bytes("peak_bytes_in_use")
    return memory.peak_resident_bytes() if counted is None else counted


def bytes_now() -> int:
    """Returns what the fullest device holds; on a CPU the resident set."""
    counted = device_bytes()
    return memory.resident_bytes() if counted is None else counted


def device_bytes(figure: str = "bytes_in_use") -> int | None:
    """Returns what the fullest device holds, or another of its allocator's figures; None on a CPU."""
    stats = [device.memory_stats() for device in jax.local_devices()]
    return max((each[figure] for each in stats if each and figure in each), default=None)
