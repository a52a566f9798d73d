"""Bytes that count against the budget, current and peak, and recognition of out-of-memory errors.

On an accelerator, these are the bytes in use of JAX's allocator, which has the budget as its limit
(`environment.on_card`). On a CPU, they are the resident set. An allocation on a CPU fails only if the process has an
address-space limit.
"""

from __future__ import annotations

import jax

from plimsoll.training import memory


def refused(problem: BaseException) -> bool:
    """Returns True for a failed allocation: XLA's error RESOURCE_EXHAUSTED, or Python's MemoryError."""
    if isinstance(problem, MemoryError):
        return True
    return isinstance(problem, jax.errors.JaxRuntimeError) and str(problem).startswith("RESOURCE_EXHAUSTED:")


def device_lost(problem: BaseException) -> bool:
    """Returns True for XLA's errors about an unusable device: a CUDA error or a lost device.

    After any CUDA error the process can run nothing more on the GPU.
    """
    if not isinstance(problem, jax.errors.JaxRuntimeError) or refused(problem):
        return False
    return "CUDA_ERROR_" in str(problem) or "device lost" in str(problem).lower()


def peak_bytes() -> int:
    """Returns the peak bytes in use of the fullest device; on a CPU the peak resident set."""
    counted = device_bytes("peak_bytes_in_use")
    return memory.peak_resident_bytes() if counted is None else counted


def bytes_now() -> int:
    """Returns the bytes in use of the fullest device; on a CPU the resident set."""
    counted = device_bytes()
    return memory.resident_bytes() if counted is None else counted


def device_bytes(figure: str = "bytes_in_use") -> int | None:
    """Returns the largest value of an allocator statistic among this process's devices; None on a CPU.

    Args:
        figure: Key of `Device.memory_stats()`.
    """
    stats = [device.memory_stats() for device in jax.local_devices()]
    return max((each[figure] for each in stats if each and figure in each), default=None)
