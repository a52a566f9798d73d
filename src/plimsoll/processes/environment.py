"""Environment variables of the processes that compile and train: set before they start, the same for both.

The compile cache is only used if the settings agree, and glibc reads its tunables once, at exec.
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
ALLOCATOR = {
    "glibc.malloc.hugetlb": 1,
    ONE_HEAP: 1,
    "glibc.malloc.mmap_threshold": 2**20,
    "glibc.malloc.trim_threshold": 2**20,
}
"""Settings by which large buffers are mapped and unmapped, so that resident memory follows the live buffers. Huge pages
cost less to touch and to release (notes, "Allocator"). One arena: with two, peaks of one plan differed by 10 MiB
(notes, "To the last MiB")."""

KEEPING = {
    ONE_HEAP: 1,
    "glibc.malloc.mmap_threshold": 2**25,
    "glibc.malloc.trim_threshold": 2**25,
}
"""Settings by which buffers up to 32 MiB are kept for reuse, in one heap for all threads."""


AHEAD_OF_TIME = {
    "tpu": {
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # else two compile children collide over a lock file
        "TPU_LOG_DIR": "disabled",  # else each of them leaves a file in /tmp/tpu_logs
    },
    "cuda": {},
}
"""Variables of children that compile for an absent chip (`planner/topology.py`). Their own backend is the CPU."""
UNTUNED = "--xla_gpu_autotune_level=0"
"""Option for those of an NVIDIA GPU: tuning times candidates on the card."""

GIVES_BACK = "PLIMSOLL_GIVE_BACK"
"""Variable of processes that give pages of library code back (`training.memory.trim`): those for this CPU alone. Where
an accelerator's driver may be loaded, that ended training with SIGBUS on an H100 (notes, "On a card")."""

PINNED_LIMIT = "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB"
"""Variable with the GiB of the host's memory that XLA pins at most in a card's process; 64 where it is not set."""

XLA_FLAGS = "XLA_FLAGS"
CPU_DEVICES = "JAX_NUM_CPU_DEVICES"
FORCED_DEVICES = "--xla_force_host_platform_device_count"
"""Variable, and older option of XLA_FLAGS, by which JAX treats one CPU as several devices."""
SHARING = (
    "--xla_cpu_collective_call_terminate_timeout_seconds=1800 --xla_cpu_enable_concurrency_optimized_scheduler=false"
)
"""Options for devices that share a CPU, or its processes. They wait for one another's cores, and XLA would end the
process after 40 s. They must send in one order: scheduled to run at once, one device would gather while another sums,
and each waits for the other for ever (notes, "Several devices, by the compiled step")."""


def for_processes(
    platform: str, base: Mapping[str, str] | None = None, *, devices: int | None = None, one_heap: bool = True
) -> dict[str, str]:
    """Returns the environment of a compile child or a training process.

    Args:
        platform: `cpu` to compile and train on this CPU, `tpu` or `cuda` to only compile for one that is absent. Any
            other name sets neither platform nor allocator.
        base: Variables to start from; this process's if left out.
        devices: Number of devices that a process treats the CPU as; as the base says if left out.
        one_heap: Whether all threads share one heap, which scatters less. With one each they do not wait for one
            another: a compile that took 3.9 s takes 2.6 s (notes, "A rehearsal beside its compiles").
    """
    environment = dict(os.environ if base is None else base)
    environment |= {
        "JAX_COMPILATION_CACHE_DIR": str(cache_folder() / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }
    environment.pop(GIVES_BACK, None)  # of the process that starts this one
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
    """Puts options of XLA before those of the user, which have precedence."""
    environment[XLA_FLAGS] = f"{flags} {environment.get(XLA_FLAGS, '')}".strip()


def for_several(platform: str, *, pinned_bytes: int | None = None) -> dict[str, str]:
    """Returns the environment of a process that trains together with others.

    It plans, too, and finds the others itself. The allocator of an accelerator has no limit then. `pinned_bytes` are
    those of `on_card`.
    """
    if platform == "cpu":
        environment = for_processes("cpu")
        _add_flags(environment, SHARING)
        return environment
    if platform == "cuda":
        return on_card(1.0, pinned_bytes=pinned_bytes)
    return for_processes("several") | {"JAX_PLATFORMS": f"{platform},cpu"}


def _tunables(environment: Mapping[str, str], ours: Mapping[str, int]) -> str:
    """Returns GLIBC_TUNABLES with our settings; those of the user have precedence."""
    tunables = [tunable for tunable in environment.get("GLIBC_TUNABLES", "").split(":") if tunable]
    set_by_user = {tunable.partition("=")[0] for tunable in tunables}
    return ":".join(tunables + [f"{name}={value}" for name, value in ours.items() if name not in set_by_user])


def for_making() -> dict[str, str]:
    """Returns the environment of a process that makes a data set.

    Its buffers have few sizes and are reused, so glibc keeps them. Its matrices are small: OpenBLAS's threads would
    only wait for one another, at seven times the CPU time.
    """
    environment = for_processes("making")
    tunables = _tunables(environment, KEEPING)
    return {"OPENBLAS_NUM_THREADS": "1", **environment, "JAX_PLATFORMS": "cpu", "GLIBC_TUNABLES": tunables}


def on_card(share: float, base: Mapping[str, str] | None = None, *, pinned_bytes: int | None = None) -> dict[str, str]:
    """Returns the environment of a process that runs on this machine's NVIDIA GPU.

    Args:
        share: Part of its memory, 0 to 1, that JAX's allocator takes at start and does not exceed. Not included are
            some hundred MiB that the driver keeps for a process (its context, the code of kernels).
        base: Variables to start from; this process's if left out.
        pinned_bytes: Bytes of the host's memory that XLA may pin, where the user has not said it (`PINNED_LIMIT`). By
            default as many as XLA does by itself.
    """
    environment = for_processes("card", base)
    if pinned_bytes is not None:
        at_least_one = max(1, math.ceil(pinned_bytes / GIB))  # transfers to the card are pinned, too
        environment.setdefault(PINNED_LIMIT, str(at_least_one))
    environment.pop("XLA_PYTHON_CLIENT_MEM_FRACTION", None)  # its old name: JAX refuses both
    environment.pop("XLA_PYTHON_CLIENT_ALLOCATOR", None)
    return environment | {
        "JAX_PLATFORMS": "cuda,cpu",
        "XLA_CLIENT_MEM_FRACTION": f"{share:.6f}",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "true" if share < 1 else "false",
    }


def hide_plugins() -> None:
    """Makes JAX find none of its plug-ins in this process, which works on the CPU: one costs 90 to 320 MiB.

    JAX finds the packages' entry points all the same, and would warn that their modules do not exist.
    """
    sys.modules.setdefault("jax_plugins", None)  # type: ignore[arg-type]
    discovery = logging.getLogger("jax._src.xla_bridge")
    discovery.addFilter(lambda record: not str(record.msg).startswith("Jax plugin configuration error"))


def keep_jax_off_the_chip() -> None:
    """Makes JAX run on the CPU and load no plug-in in this process, which is about to import a file of the user's.

    The compile child and the training process are not affected: each has an environment of its own.
    """
    hide_plugins()
    import jax

    jax.config.update("jax_platforms", "cpu")
