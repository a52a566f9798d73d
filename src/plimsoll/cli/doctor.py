"""Command `plimsoll doctor`: shows devices, memory and disk of this machine, and checks that it can train."""

from __future__ import annotations

import dataclasses
import platform
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from plimsoll.cli.options import OneOfSeveral
from plimsoll.cli.parse import parse, print_answer, say
from plimsoll.errors import PlimsollError
from plimsoll.files.provenance import DISTRIBUTION, PACKAGES, installed_version
from plimsoll.options import Json, Metavar
from plimsoll.processes import cache
from plimsoll.report.layout import all_labelled, figure
from plimsoll.units import GIB, MIB, format_bytes

LEAST_MEMORY = 512 * MIB
"""Available memory in bytes below which a problem is reported: the process of a small model takes 300 to 400 MiB."""
LEAST_DISK = GIB
"""Free disk space in bytes below which a problem is reported."""
INSTEAD = {
    "cache": "empty the cache with --empty-cache, or set PLIMSOLL_CACHE to another disk",
    "run": "name another --run",
}
"""Advice if the disk of the cache or of the runs is nearly full, as an alternative to making room."""
LABELS = {
    "flops": "matrix products",
    "copy_bytes_per_second": "memory speed",
    "launch_seconds": "a small kernel",
    "host_link_bytes_per_second": "from pinned memory",
    "transfer_bytes_per_second": "batch to device",
    "compile_seconds": "jit compiles in",
    "call_seconds": "a call of it takes",
    "process_bytes": "Python and JAX",
    "total_bytes": "memory",
    "available_bytes": "available",
    "default_budget_bytes": "default budget",
    "cache_folder": "cache",
    "cache_parts_bytes": "  has",
    "cache_limit_bytes": "  has at most",
    "cache_free_bytes": "  free on its disk",
    "run_folder": "runs",
    "run_free_bytes": "  free on its disk",
}
"""Labels of the rows of the output, by name of the value, in the order of the rows."""


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(OneOfSeveral):
    run: Annotated[str, Metavar("FOLDER")] = "runs"
    """Folder for runs, whose free disk space is reported."""
    chip: Annotated[str | None, Metavar("CHIP")] = None
    """Chip to look for, one of `plimsoll chips`. By default the chip that training would use."""
    empty_cache: bool = False
    """Delete everything in the cache that can be made again, and check nothing. Copies of runs in buckets, and text
    that is being tokenised, are kept."""
    json: Json = False


def doctor(arguments: list[str]) -> int:
    """Prints devices, versions, rates, memory and disk, and `ready` or the problems. Returns the exit code."""
    options = parse(DoctorOptions, arguments, command="doctor")
    if options.empty_cache:
        return empty_cache(options)
    import psutil

    from plimsoll.planner import host

    available = host.available_bytes()
    versions = {"python": platform.python_version(), "plimsoll": installed_version(DISTRIBUTION)}
    result: dict[str, Any] = {
        "versions": versions | {name: installed_version(name) for name in PACKAGES},
        "memory": {
            "total_bytes": psutil.virtual_memory().total,
            "available_bytes": available,
            "default_budget_bytes": available - host.margin_bytes(available),
        },
        "disk": disk(Path(options.run)),
        "jax": examine(options),
    }
    result["mend"] = to_mend(result)
    result["ready"] = not result["mend"]
    print_answer(options, result, report)
    return 0 if result["ready"] else 2


def examine(options: DoctorOptions) -> dict[str, Any]:
    """Returns a dict with the devices and speeds that JAX finds; if it fails, with the reason as `failed`."""
    from plimsoll.api import cluster
    from plimsoll.api.planning.place import chip_here, chip_named
    from plimsoll.processes import environment
    from plimsoll.processes.request import ask

    # Invalid options raise an error here.
    member = cluster.membership(options.coordinator, options.processes, options.process, chip=options.chip)
    backend = "cpu"
    if options.chip is not None:
        backend = chip_named(options.chip).platform

    # If the accelerator fails, return the problem instead of raising it. JAX runs in a separate process.
    try:
        if options.chip is None and member is None:
            backend = chip_here(say, batch=0).platform
        question = {} if member is None else {"together": dataclasses.asdict(member)}
        under = None if backend == "cpu" and member is None else environment.for_several(backend)
        examined = ask("doctor", question, under=under)
    except (PlimsollError, RuntimeError) as problem:
        return {"failed": str(problem)}
    if backend != "cpu" and examined["backend"] == "cpu":  # JAX falls back to the CPU without an error
        return {"failed": f"it finds only a CPU where {options.chip or 'an accelerator'} was asked for"}
    return examined


def disk(run: Path) -> dict[str, Any]:
    """Returns the free bytes of the disks for the cache and for runs, and the bytes of the cache by part."""
    folder = cache.cache_folder()
    run = run.expanduser().absolute()
    parent = next(place for place in (run, *run.parents) if place.exists())
    return {
        "cache_folder": str(folder),
        "cache_free_bytes": shutil.disk_usage(folder).free,
        "cache_limit_bytes": cache.limit_bytes(),
        "cache_parts_bytes": sizes(cache.entries(folder)),
        "run_folder": str(run),
        "run_free_bytes": shutil.disk_usage(parent).free,
    }


def sizes(entries: Iterable[cache.Entry]) -> dict[str, int]:
    """Returns the total bytes of cache entries, by part of the cache."""
    sums = dict.fromkeys(cache.PARTS, 0)
    for entry in entries:
        sums[entry.part] += entry.size_bytes
    return sums


def empty_cache(options: DoctorOptions) -> int:
    """Empties the cache, and prints the removed and remaining bytes. Returns the exit code."""
    folder = cache.cache_folder()
    removed, kept = map(sizes, cache.empty(folder))
    result = {"cache_folder": str(folder), "removed_bytes": removed, "kept_bytes": kept}
    text = (
        f"removed from {folder}: {figure('bytes', removed)}\nstill there, in use or not yours: {figure('bytes', kept)}"
    )
    return print_answer(options, result, lambda _: text)


def to_mend(result: Mapping[str, Any]) -> list[str]:
    """Returns a sentence for each problem that keeps a run from starting, with advice."""
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
    for what, instead in INSTEAD.items():
        free = result["disk"][f"{what}_free_bytes"]
        if free < LEAST_DISK:
            folder = result["disk"][f"{what}_folder"]
            problems.append(f"{format_bytes(free)} of disk are free at {folder}: make room, or {instead}")
    return problems


def report(result: Mapping[str, Any]) -> str:
    """Returns the result of the checks as text."""
    jax = result["jax"]
    rows = [("versions", figure("versions", result["versions"]))]
    if "failed" not in jax:
        rows.append(("devices", f"{devices_in_words(jax['devices'])}, backend {jax['backend']}"))
        for number, process in enumerate(jax.get("processes", [])):
            rows.append((f"process {number}", f"{devices_in_words(process['devices'])} on {process['host']}"))
    found = {**jax, **result["memory"], **result["disk"]}
    rows += [(label, figure(name, found[name])) for name, label in LABELS.items() if name in found]
    rows += data_sheet_rows(jax)
    verdict = [f"to mend: {problem}" for problem in result["mend"]] or ["ready"]
    return "\n".join([*all_labelled(rows), "", *verdict])


def data_sheet_rows(jax: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns an output row with an accelerator's speeds from its data sheet; no rows for an unknown chip."""
    from plimsoll.planner.chips import chip_called

    chip = None if "failed" in jax else chip_called(jax["devices"][0]["kind"])
    if chip is None:
        return []
    return [("its data sheet", f"{figure('flops', chip.flops)}; memory {figure('bandwidth', chip.memory_bandwidth)}")]


def devices_in_words(devices: Sequence[Mapping[str, str]]) -> str:
    """Returns the number of devices and their kinds as text."""
    return f"{len(devices)}: {', '.join(device['kind'] for device in devices)}"
