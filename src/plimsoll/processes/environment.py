"""Environment variables of the processes that compile and train.

Both kinds of process get the same variables, because JAX's compile cache is used only if the settings agree. The
variables are set before a process starts, because glibc reads its tunables once, at exec.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Mapping

from plimsoll.processes.cache import cache_folder
from plimsoll.units import GIB

ONE_HEAP = "glibc.malloc.arena_max"
"""Name of the glibc tunable that limits the number of heaps."""
ALLOCATOR = {
    "glibc.malloc.hugetlb": 1,
    ONE_HEAP: 1,
    "glibc.malloc.mmap_threshold": 2**20,
    "glibc.malloc.trim_threshold": 2**20,
}
"""glibc tunables of processes that train. A large buffer is a memory mapping that is unmapped when freed, so that
resident memory follows the live buffers. Huge pages are faster to touch and to release (notes, "Allocator"). With two
heaps instead of one, peaks of the same plan differed by 10 MiB (notes, "To the last MiB")."""

KEEPING = {
    ONE_HEAP: 1,
    "glibc.malloc.mmap_threshold": 2**25,
    "glibc.malloc.trim_threshold": 2**25,
}
"""glibc tunables that keep freed buffers up to 32 MiB for reuse, in one heap for all threads."""


AHEAD_OF_TIME = {
    "tpu": {
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # without it, two compile children collide over a lock file
        "TPU_LOG_DIR": "disabled",  # without it, each child leaves a file in /tmp/tpu_logs
    },
    "cuda": {},
}
"""Map from platform to the variables of child processes that compile for an absent chip (`planner/topology.py`). The
JAX backend of these processes is the CPU."""
UNTUNED = "--xla_gpu_autotune_level=0"
"""Option that switches off autotuning in compile processes for an absent NVIDIA GPU: tuning needs the GPU."""

GIVES_BACK = "PLIMSOLL_GIVE_BACK"
"""Environment variable that allows a process to drop pages of library code (`training.memory.trim`). It is set only in
processes for this CPU: with an accelerator's driver loaded, training on an H100 ended with SIGBUS (notes, "On a
card")."""

PINNED_LIMIT = "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB"
"""Variable with the limit in GiB of the pinned host memory of a process on a GPU. XLA's default is 64."""

XLA_FLAGS = "XLA_FLAGS"
CPU_DEVICES = "JAX_NUM_CPU_DEVICES"
"""Variable with the number of devices as which JAX presents one CPU."""
FORCED_DEVICES = "--xla_force_host_platform_device_count"
"""Older option, in XLA_FLAGS, with the number of devices as which JAX presents one CPU."""
SHARING = (
    "--xla_cpu_collective_call_terminate_timeout_seconds=1800 --xla_cpu_enable_concurrency_optimized_scheduler=false"
)
"""XLA options for devices or processes that share one CPU. In collectives they wait long for one another, and XLA would
abort after 40 s. The concurrent scheduler may run collectives in a different order on each device, so that devices wait
for one another forever (notes, "Several devices, by the compiled step")."""


def for_processes(
    platform: str, base: Mapping[str, str] | None = None, *, devices: int | None = None, one_heap: bool = True
) -> dict[str, str]:
    """Returns the environment of a process that compiles or trains.

    Args:
        platform: `cpu` to compile and train on this CPU; `tpu` or `cuda` to compile for an absent chip. Any other name
            sets neither platform nor allocator.
        base: Variables to start from; those of this process if left out.
        devices: Number of devices as which JAX presents the CPU; if left out, the variables in `base` are unchanged.
        one_heap: True if all threads share one heap, which makes the peak more repeatable. With a heap per thread,
            threads do not wait for one another: a compile of 3.9 s took 2.6 s (notes, "A rehearsal beside its
            compiles").
    """
    environment = dict(os.environ if base is None else base)
    environment |= {
        "JAX_COMPILATION_CACHE_DIR": str(cache_folder() / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }
    environment.pop(GIVES_BACK, None)  # may be inherited from the parent process
    if platform in AHEAD_OF_TIME:
        environment |= {"JAX_PLATFORMS": "cpu", **AHEAD_OF_TIME[platform]}
    if platform == "cuda":
        environment[XLA_FLAGS] = f"{environment.get(XLA_FLAGS, '')} {UNTUNED}".strip()
    if platform == "cpu":
        _place_on_cpu(environment, devices, one_heap=one_heap)
    return environment


def _place_on_cpu(environment: dict[str, str], devices: int | None, *, one_heap: bool) -> None:
    """Adds the variables of a process that compiles and trains on this CPU."""
    ours = {name: value for name, value in ALLOCATOR.items() if one_heap or name != ONE_HEAP}
    environment |= {"JAX_PLATFORMS": "cpu", GIVES_BACK: "1", "GLIBC_TUNABLES": _tunables(environment, ours)}
    if devices is None:
        return
    if devices > 1 or CPU_DEVICES in environment or XLA_FLAGS in environment:
        environment[CPU_DEVICES] = str(devices)
    if devices > 1:
        _add_flags(environment, SHARING)


def _add_flags(environment: dict[str, str], flags: str) -> None:
    """Inserts XLA options before the user's own options, which have precedence."""
    environment[XLA_FLAGS] = f"{flags} {environment.get(XLA_FLAGS, '')}".strip()


def for_several(platform: str, *, pinned_bytes: int | None = None) -> dict[str, str]:
    """Returns the environment of a process that trains one run together with other processes.

    The process also searches for the plan. So its allocator on an accelerator has no limit yet.

    Args:
        platform: JAX's platform: `cpu`, `cuda` or `tpu`.
        pinned_bytes: Bytes of host memory that XLA may pin, as in `on_card`.
    """
    if platform == "cpu":
        environment = for_processes("cpu")
        _add_flags(environment, SHARING)
        return environment
    if platform == "cuda":
        return on_card(1.0, pinned_bytes=pinned_bytes)
    return for_processes("several") | {"JAX_PLATFORMS": f"{platform},cpu"}


def _tunables(environment: Mapping[str, str], ours: Mapping[str, int]) -> str:
    """Returns the value of GLIBC_TUNABLES with the user's and our tunables. The user's have precedence."""
    tunables = [tunable for tunable in environment.get("GLIBC_TUNABLES", "").split(":") if tunable]
    set_by_user = {tunable.partition("=")[0] for tunable in tunables}
    return ":".join(tunables + [f"{name}={value}" for name, value in ours.items() if name not in set_by_user])


def for_making() -> dict[str, str]:
    """Returns the environment of a process that creates a data set.

    Such a process reuses buffers of a few sizes, so glibc keeps freed buffers. Its matrices are small: several threads
    of OpenBLAS would mostly wait, and take seven times the CPU time.
    """
    environment = for_processes("making")
    tunables = _tunables(environment, KEEPING)
    return {"OPENBLAS_NUM_THREADS": "1", **environment, "JAX_PLATFORMS": "cpu", "GLIBC_TUNABLES": tunables}


def on_card(share: float, base: Mapping[str, str] | None = None, *, pinned_bytes: int | None = None) -> dict[str, str]:
    """Returns the environment of a process that runs on this machine's NVIDIA GPU.

    Args:
        share: Fraction of the GPU's memory, 0 to 1, that JAX's allocator does not exceed. If below 1, it is reserved at
            start. The driver takes some hundred MiB more for each process (its context, the code of kernels).
        base: Variables to start from; those of this process if left out.
        pinned_bytes: Bytes of host memory that XLA may pin, unless the user has set `PINNED_LIMIT`; XLA's default if
            left out.
    """
    environment = for_processes("card", base)
    if pinned_bytes is not None:
        at_least_one = max(1, math.ceil(pinned_bytes / GIB))  # transfers to the GPU need pinned memory, too
        environment.setdefault(PINNED_LIMIT, str(at_least_one))
    environment.pop("XLA_PYTHON_CLIENT_MEM_FRACTION", None)  # old name of XLA_CLIENT_MEM_FRACTION: JAX refuses both
    environment.pop("XLA_PYTHON_CLIENT_ALLOCATOR", None)
    return environment | {
        "JAX_PLATFORMS": "cuda,cpu",
        "XLA_CLIENT_MEM_FRACTION": f"{share:.6f}",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "true" if share < 1 else "false",
    }


def hide_plugins() -> None:
    """Keeps JAX from loading its plug-ins in this process, which computes on the CPU. A plug-in takes 90 to 320 MiB.

    JAX still finds the plug-ins' entry points. Its warnings that their modules do not exist are suppressed.
    """
    sys.modules.setdefault("jax_plugins", None)  # type: ignore[arg-type]
    discovery = logging.getLogger("jax._src.xla_bridge")
    discovery.addFilter(lambda record: not str(record.msg).startswith("Jax plugin configuration error"))


def keep_jax_off_the_chip() -> None:
    """Makes JAX run on the CPU without plug-ins in this process. Call it before importing a user's file.

    The processes that compile and train are not affected, because each has its own environment.
    """
    hide_plugins()
    import jax

    jax.config.update("jax_platforms", "cpu")
