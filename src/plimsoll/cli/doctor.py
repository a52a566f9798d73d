"""Command `plimsoll doctor`: what a run finds on this machine, and whether that is enough to train."""

from __future__ import annotations

import dataclasses
import json
import platform
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from plimsoll.cli.parse import Json, parse
from plimsoll.errors import PlimsollError
from plimsoll.runs.provenance import DISTRIBUTION, installed_version
from plimsoll.units import GIB, MIB

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "tokenizers", "datasets")
LEAST_MEMORY = 512 * MIB
"""Memory below which no run is worth trying: the process of a small model takes 300 to 400 MiB."""
LEAST_DISK = GIB


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    run: str = "runs"
    """Folder where runs are to be kept: its free disk is reported."""
    chip: str = "cpu"
    """Ask JAX for this chip's devices: one of `plimsoll chips`."""
    coordinator: str | None = None
    """HOST:PORT of the first of several processes, each started with this command: every one reports all."""
    processes: int | None = None
    """How many processes the run has; with --coordinator."""
    process: int | None = None
    """Which of the processes this is, from 0; with --coordinator."""
    json: Json = False


def doctor(arguments: list[str]) -> int:
    """Prints devices, versions, rates, memory and disk, and `ready` or what to mend. Returns the exit code."""
    options = parse(DoctorOptions, arguments, program="plimsoll doctor")
    from plimsoll.api import cluster
    from plimsoll.planner import chips
    from plimsoll.processes import environment

    backend = chips.chip(options.chip).platform
    member = cluster.membership(options.coordinator, options.processes, options.process, chip=options.chip)
    under = None if backend == "cpu" and member is None else environment.for_several(backend)
    question = {} if member is None else {"together": dataclasses.asdict(member)}
    result: dict[str, Any] = {
        "versions": {"python": platform.python_version(), "plimsoll": installed_version(DISTRIBUTION)}
        | {name: installed_version(name) for name in PACKAGES},
        "memory": memory(),
        "disk": disk(Path(options.run)),
        "plugins": plugins(),
    }
    try:
        from plimsoll.processes.request import ask

        result["jax"] = ask("doctor", question, under=under)
    except (PlimsollError, RuntimeError) as problem:  # a failure is a finding here
        result["jax"] = {"failed": str(problem)}
    result["mend"] = to_mend(result)
    result["ready"] = not result["mend"]
    print(json.dumps(result) if options.json else report(result))
    return 0 if result["ready"] else 2


def memory() -> dict[str, int | None]:
    """Returns the machine's memory in bytes.

    `cgroup_room_bytes` is what the control groups of this process still allow; None without a limit.
    """
    import psutil

    from plimsoll.planner import host

    room, available = host.cgroup_room(), host.available_bytes()
    return {
        "total_bytes": psutil.virtual_memory().total,
        "available_bytes": available,
        "cgroup_room_bytes": room if room < host.NO_LIMIT else None,
        "default_budget_bytes": available - host.margin_bytes(available),
    }


def disk(run: Path) -> dict[str, Any]:
    """Returns the free bytes of the cache folder's disk and of that for runs, and the size of the compile cache."""
    from plimsoll.processes.environment import cache_folder

    cache = cache_folder()
    compiled = [path for path in (cache / "compiled").glob("**/*") if path.is_file()]
    run = run.expanduser().absolute()
    parent = next(folder for folder in (run, *run.parents) if folder.exists())
    return {
        "cache_folder": str(cache),
        "cache_free_bytes": shutil.disk_usage(cache).free,
        "cache_bytes": sum(path.stat().st_size for path in compiled),
        "run_folder": str(run),
        "run_free_bytes": shutil.disk_usage(parent).free,
    }


def plugins() -> list[str]:
    """Returns the names of the JAX plug-ins that are installed.

    Each costs a CPU run 90 to 320 MiB unless it is hidden, as it is in training and compile processes.
    """
    registered = {entry.value.partition(":")[0] for entry in metadata.entry_points(group="jax_plugins")}
    folders = (Path(place, "jax_plugins") for place in sys.path if place)
    inside = {f"jax_plugins.{path.name}" for folder in folders if folder.is_dir() for path in folder.iterdir()}
    return sorted(name for name in registered | inside if not name.endswith("__"))


def to_mend(result: Mapping[str, Any]) -> list[str]:
    """Returns a sentence for each thing that keeps a run from starting, with what to do about it."""
    from plimsoll.units import format_bytes

    problems = []
    missing = [name for name in PACKAGES if result["versions"][name] is None]
    if missing:
        problems.append(f"not installed: {', '.join(missing)}; `make setup` installs what is locked")
    if "failed" in result["jax"]:
        problems.append(f"JAX does not work here: {result['jax']['failed']}")
    available = result["memory"]["available_bytes"]
    if available < LEAST_MEMORY:
        problems.append(
            f"{format_bytes(available)} of memory are available, and the smallest runs take about"
            f" {format_bytes(LEAST_MEMORY)}: end other programs, or raise the limit of the container"
        )
    for what in ("cache", "run"):
        free = result["disk"][f"{what}_free_bytes"]
        if free < LEAST_DISK:
            folder = result["disk"][f"{what}_folder"]
            instead = "set PLIMSOLL_CACHE to another disk" if what == "cache" else "name another --run"
            problems.append(f"{format_bytes(free)} of disk are free at {folder}: make room, or {instead}")
    return problems


def report(result: Mapping[str, Any]) -> str:
    """Returns the result as text."""
    from plimsoll.report.layout import format_known_bytes, labelled
    from plimsoll.units import format_bytes, format_seconds

    jax, ram, where = result["jax"], result["memory"], result["disk"]
    installed = ", ".join(f"{name} {version or 'missing'}" for name, version in result["versions"].items())
    hidden = ", ".join(result["plugins"]) + ": hidden from runs on cpu" if result["plugins"] else "none"
    cache_free, run_free = (f"{format_bytes(where[name])} free" for name in ("cache_free_bytes", "run_free_bytes"))
    lines = labelled("versions", installed)
    if "failed" not in jax:
        rates = ", ".join(f"{rate / 1e9:,.0f} GFLOP/s in {precision}" for precision, rate in jax["flops"].items())
        copied, moved = jax["copy_bytes_per_second"], jax["transfer_bytes_per_second"]
        kinds = ", ".join(device["kind"] for device in jax["devices"])
        lines += labelled("devices", f"{len(jax['devices'])} on the backend {jax['backend']}: {kinds}")
        for number, process in enumerate(jax.get("processes", [])):
            kinds = ", ".join(device["kind"] for device in process["devices"])
            lines += labelled(f"process {number}", f"{len(process['devices'])} on {process['host']}: {kinds}")
        lines += [
            *labelled("a jitted step", format_seconds(jax["step_seconds"])),
            *labelled("dots", rates),
            *labelled("memory speed", f"{format_bytes(copied)}/s, host to device {format_bytes(moved)}/s"),
            *labelled("process", f"{format_bytes(jax['process_bytes'])} for Python and JAX alone"),
        ]
    limit = ram["cgroup_room_bytes"]
    lines += [
        *labelled("memory", f"{format_bytes(ram['total_bytes'])}, available {format_bytes(ram['available_bytes'])}"),
        *labelled("control group", "no limit" if limit is None else f"{format_known_bytes(limit)} left"),
        *labelled("default budget", f"{format_bytes(ram['default_budget_bytes'])} (--memory sets another)"),
        *labelled("compile cache", f"{format_bytes(where['cache_bytes'])} in {where['cache_folder']}, {cache_free}"),
        *labelled("runs", f"{where['run_folder']}, {run_free}"),
        *labelled("JAX plug-ins", hidden),
    ]
    verdict = ["ready"] if result["ready"] else [f"to mend: {problem}" for problem in result["mend"]]
    return "\n".join([*lines, "", *verdict])
