"""The environment of the processes that compile and train: set before they start, the same for both.

The compile cache only serves where the settings agree, and glibc reads its tunables once, at exec.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from platformdirs import user_cache_path

from plimsoll.errors import PlimsollError

ALLOCATOR = {
    "glibc.malloc.hugetlb": 1,
    "glibc.malloc.arena_max": 2,
    "glibc.malloc.mmap_threshold": 2**20,
    "glibc.malloc.trim_threshold": 2**20,
}
"""Large buffers come from the system and go back to it, so that the peak is what is alive, not what once was; in huge
pages, which cost less to touch and to take back (docs/log.md, "Allocator")."""

KEEPING = {
    "glibc.malloc.arena_max": 1,
    "glibc.malloc.mmap_threshold": 2**25,
    "glibc.malloc.trim_threshold": 2**25,
}
"""Buffers up to 32 MiB are kept for the next of their size: threads share one heap."""


def cache_folder() -> Path:
    """Where compiled steps and measured rates are kept; `PLIMSOLL_CACHE` names another place."""
    named = os.environ.get("PLIMSOLL_CACHE")
    folder = Path(named).expanduser() if named else user_cache_path("plimsoll", ensure_exists=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise PlimsollError(
            f"the cache folder {folder} cannot be made: {problem.strerror}. Compiled steps are kept there: name a"
            " folder you may write to with PLIMSOLL_CACHE"
        ) from None
    return folder


AHEAD_OF_TIME = {
    "tpu": {
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # else two compile children collide over a lock file
        "TPU_LOG_DIR": "disabled",  # else each of them leaves a file in /tmp/tpu_logs
    },
    "cuda": {"XLA_FLAGS": "--xla_gpu_autotune_level=0"},  # tuning times candidates on the card
}
"""Of children that compile for a chip that is not here (`planner/topology.py`): their own backend is the CPU."""


CPU_DEVICES = "JAX_NUM_CPU_DEVICES"
FORCED_DEVICES = "--xla_force_host_platform_device_count"
"""The variable, and the older one of XLA_FLAGS, by which JAX takes one CPU for several devices."""
WAITS = "--xla_cpu_collective_call_terminate_timeout_seconds=1800"
"""Devices that are one CPU wait for one another while others have its cores; XLA ends the process after 40 s."""


def for_processes(
    platform: str, base: Mapping[str, str] | None = None, *, devices: int | None = None
) -> dict[str, str]:
    """The variables a compile child and a training process run under. `tpu` and `cuda`: a child that only compiles.

    `devices`: how many a CPU is taken for in one process; as the user's environment says where it is not given.
    """
    environment = dict(os.environ if base is None else base)
    environment |= {
        "JAX_COMPILATION_CACHE_DIR": str(cache_folder() / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }
    if platform in AHEAD_OF_TIME:
        theirs = environment.get("XLA_FLAGS", "")
        environment |= {"JAX_PLATFORMS": "cpu", **AHEAD_OF_TIME[platform]}
        environment["XLA_FLAGS"] = f"{theirs} {AHEAD_OF_TIME[platform].get('XLA_FLAGS', '')}".strip()
    if platform == "cpu":
        environment["JAX_PLATFORMS"] = "cpu"
        environment["GLIBC_TUNABLES"] = _tunables(environment, ALLOCATOR)
        if devices is not None and (devices > 1 or CPU_DEVICES in environment or "XLA_FLAGS" in environment):
            environment[CPU_DEVICES] = str(devices)
        if devices is not None and devices > 1:
            environment["XLA_FLAGS"] = f"{WAITS} {environment.get('XLA_FLAGS', '')}".strip()
    return environment


def for_several(platform: str) -> dict[str, str]:
    """Of a process that trains with others: it plans, too, and looks for its cluster itself. No accelerator's allocator
    has a limit then."""
    if platform == "cpu":
        environment = for_processes("cpu")
        environment["XLA_FLAGS"] = f"{WAITS} {environment.get('XLA_FLAGS', '')}".strip()
        return environment
    return on_card(1.0) if platform == "cuda" else for_processes("several") | {"JAX_PLATFORMS": f"{platform},cpu"}


def _tunables(environment: Mapping[str, str], ours: Mapping[str, int]) -> str:
    """What the user has set goes before ours."""
    tunables = [t for t in environment.get("GLIBC_TUNABLES", "").split(":") if t]
    named = {tunable.partition("=")[0] for tunable in tunables}
    return ":".join(tunables + [f"{name}={value}" for name, value in ours.items() if name not in named])


def for_making() -> dict[str, str]:
    """Of a process that makes a data set: its buffers have a few sizes and are used again, so glibc keeps them. Its
    matrices are small: OpenBLAS's threads would only wait for one another, at seven times the CPU time."""
    environment = for_processes("making")
    return (
        {"OPENBLAS_NUM_THREADS": "1"}
        | environment
        | {
            "JAX_PLATFORMS": "cpu",
            "GLIBC_TUNABLES": _tunables(environment, KEEPING),
        }
    )


def on_card(share: float, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Of a process that runs on the NVIDIA GPU that is here, and may have `share` of its memory (0 to 1).

    The allocator takes it when JAX starts, so that nobody else does, and gives no byte more. Not in it: what the
    driver keeps for a process (its context, the code of kernels), some hundred MiB.
    """
    environment = for_processes("card", base)
    environment.pop("XLA_PYTHON_CLIENT_MEM_FRACTION", None)  # its old name: JAX refuses both
    environment.pop("XLA_PYTHON_CLIENT_ALLOCATOR", None)
    return environment | {
        "JAX_PLATFORMS": "cuda,cpu",
        "XLA_CLIENT_MEM_FRACTION": f"{share:.6f}",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "true" if share < 1 else "false",
    }


def keep_jax_off_the_chip() -> None:
    """For a command that imports a file of the user's: JAX there runs on the CPU, and looks for no plug-in.

    Only what this process does with JAX: the compile child and the training process have an environment of their own.
    """
    sys.modules.setdefault("jax_plugins", None)  # type: ignore[arg-type]
    import jax

    jax.config.update("jax_platforms", "cpu")
