"""Command `plimsoll doctor`: what a run finds on this machine, and whether that is enough to train."""

from __future__ import annotations

import dataclasses
import json
import platform
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plimsoll import cache
from plimsoll.cli.parse import Json, parse, print_answer
from plimsoll.errors import PlimsollError
from plimsoll.files.provenance import DISTRIBUTION, installed_version
from plimsoll.units import GIB, MIB

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "tokenizers", "datasets")
LEAST_MEMORY = 512 * MIB
"""Memory below which no run is worth trying: the process of a small model takes 300 to 400 MiB."""
LEAST_DISK = GIB


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    run: str = "runs"
    """Folder where runs will be kept, whose free disk space is reported."""
    chip: str | None = None
    """Chip whose devices JAX is asked for, one of `plimsoll chips`. By default what training would use."""
    coordinator: str | None = None
    """HOST:PORT of the first of several processes, each started with this command; every one reports all. Left out for
    one process."""
    processes: int | None = None
    """Number of processes; only with --coordinator."""
    process: int | None = None
    """Number of this process, counted from 0; only with --coordinator."""
    empty_cache: bool = False
    """Delete what the cache can make again, and check nothing. Learned predictions, runs of buckets and text that is
    being tokenised are kept."""
    json: Json = False


def doctor(arguments: list[str]) -> int:
    """Prints devices, versions, rates, memory and disk, and `ready` or what to mend. Returns the exit code."""
    options = parse(DoctorOptions, arguments, program="plimsoll doctor")
    if options.empty_cache:
        return empty_cache(as_json=options.json)
    trains, examined = examine(options)
    is_card = "launch_seconds" in examined
    result: dict[str, Any] = {
        "trains": trains,
        "versions": {"python": platform.python_version(), "plimsoll": installed_version(DISTRIBUTION)}
        | {name: installed_version(name) for name in PACKAGES},
        "memory": memory(),
        "disk": disk(Path(options.run)),
        "jax": examined,
        "sheet": sheet(str(examined["devices"][0]["kind"])) if is_card else None,
    }
    result["mend"] = to_mend(result)
    result["ready"] = not result["mend"]
    print_answer(options, result, report)
    return 0 if result["ready"] else 2


def examine(options: DoctorOptions) -> tuple[str | None, dict[str, Any]]:
    """Returns the device that training takes by default, in words, and what JAX finds, or `failed` with the reason."""
    from plimsoll.api import accelerator, cluster
    from plimsoll.processes import environment
    from plimsoll.processes.request import ask

    # The backend. What cannot be used is something to mend; a wrong name is refused.
    member = cluster.membership(options.coordinator, options.processes, options.process, chip=options.chip)
    chosen: list[str] = []
    backend = "cpu"
    if options.chip is not None:
        backend = accelerator.chip_named(options.chip).platform
    elif member is None:
        try:
            backend = accelerator.chip_here(chosen.append, batch=0).platform
        except PlimsollError as problem:
            return None, {"failed": str(problem)}

    # JAX, in a process of its own.
    question = {} if member is None else {"together": dataclasses.asdict(member)}
    under = None if backend == "cpu" and member is None else environment.for_several(backend)
    try:
        examined = ask("doctor", question, under=under)
    except (PlimsollError, RuntimeError) as problem:
        examined = {"failed": str(problem)}
    if backend != "cpu" and examined.get("backend") == "cpu":  # JAX falls back to it without a word
        examined = {"failed": f"it finds only a CPU where {options.chip or 'an accelerator'} was asked for"}
    return (chosen[0] if chosen else None), examined


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
    """Returns the free bytes of the cache folder's disk and of that for runs, and the bytes of the cache by part."""
    folder, limit = cache.cache_folder(), cache.limit_bytes()
    entries = cache.entries(folder)
    run = run.expanduser().absolute()
    parent = next(place for place in (run, *run.parents) if place.exists())
    return {
        "cache_folder": str(folder),
        "cache_free_bytes": shutil.disk_usage(folder).free,
        "cache_limit_bytes": limit,
        "cache_bytes": sum(entry.size_bytes for entry in entries),
        "cache_parts_bytes": sizes(entries),
        "cache_runs_bytes": sum(path.lstat().st_size for path in (folder / "runs").glob("**/*") if path.is_file()),
        "run_folder": str(run),
        "run_free_bytes": shutil.disk_usage(parent).free,
    }


def sizes(entries: Iterable[cache.Entry]) -> dict[str, int]:
    """Returns the bytes of each part of the cache."""
    sums = dict.fromkeys(cache.PARTS, 0)
    for entry in entries:
        sums[entry.part] += entry.size_bytes
    return sums


def by_part(parts: Mapping[str, int]) -> str:
    """Returns the parts that are not empty, in words."""
    from plimsoll.units import format_bytes

    return ", ".join(f"{cache.PARTS[part]} {format_bytes(size)}" for part, size in parts.items() if size) or "empty"


def empty_cache(*, as_json: bool) -> int:
    """Empties the cache, and prints what was removed. Returns the exit code."""
    from plimsoll.units import format_bytes

    folder = cache.cache_folder()
    removed, kept = (sizes(entries) for entries in cache.empty(folder))
    if as_json:
        print(json.dumps({"cache_folder": str(folder), "removed_bytes": removed, "kept_bytes": kept}))
        return 0
    print(f"removed from {folder}: {format_bytes(sum(removed.values()))} ({by_part(removed)})")
    if any(kept.values()):
        print(
            f"still there: {format_bytes(sum(kept.values()))} ({by_part(kept)}), which a process is making or"
            " this user may not remove"
        )
    return 0


def sheet(kind: str) -> dict[str, Any] | None:
    """Returns the rates of a card's data sheet, named as measured ones are; None if no list of chips has the card.

    Args:
        kind: JAX's name of the card.
    """
    from plimsoll.planner import chips

    chip = chips.chip_called(kind)
    if chip is None:
        return None
    return {"flops": dict(chip.flops), "copy_bytes_per_second": chip.memory_bandwidth}


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
            instead = "name another --run"
            if what == "cache":
                instead = "set PLIMSOLL_CACHE to another disk"
                if held := result["disk"]["cache_bytes"]:
                    instead = f"empty the cache with --empty-cache ({format_bytes(held)}), or {instead}"
            problems.append(f"{format_bytes(free)} of disk are free at {folder}: make room, or {instead}")
    return problems


def report(result: Mapping[str, Any]) -> str:
    """Returns the result as text."""
    from plimsoll.report.layout import all_labelled, format_known_bytes
    from plimsoll.units import format_bytes

    # Versions, and what JAX finds.
    rows = [("versions", ", ".join(f"{name} {version or 'missing'}" for name, version in result["versions"].items()))]
    if result["trains"]:
        rows.append(("by default", result["trains"]))
    if "failed" not in result["jax"]:
        rows += device_rows(result["jax"], result["sheet"] or {"flops": {}})

    # Memory and disk.
    ram, where = result["memory"], result["disk"]
    limit = ram["cgroup_room_bytes"]
    held = f"{format_bytes(where['cache_bytes'])} of at most {format_bytes(where['cache_limit_bytes'])}"
    if where["cache_bytes"]:
        held += f" ({by_part(where['cache_parts_bytes'])})"
    if where["cache_runs_bytes"]:
        held += f", and runs of buckets {format_bytes(where['cache_runs_bytes'])}"
    rows += [
        ("memory", f"{format_bytes(ram['total_bytes'])}, available {format_bytes(ram['available_bytes'])}"),
        ("control group", "no limit" if limit is None else f"{format_known_bytes(limit)} left"),
        ("default budget", f"{format_bytes(ram['default_budget_bytes'])} (--memory sets another)"),
        ("cache", f"{where['cache_folder']}, {format_bytes(where['cache_free_bytes'])} free: {held}"),
        ("runs", f"{where['run_folder']}, {format_bytes(where['run_free_bytes'])} free"),
    ]
    verdict = [f"to mend: {problem}" for problem in result["mend"]] or ["ready"]
    return "\n".join([*all_labelled(rows), "", *verdict])


def device_rows(jax: Mapping[str, Any], nominal: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the devices and their measured rates, beside those of the data sheet, where there is one."""
    from plimsoll.units import format_bytes, format_seconds

    def described(devices: list[Mapping[str, Any]], where: str) -> str:
        return f"{len(devices)} on {where}: {', '.join(device['kind'] for device in devices)}"

    rows = [("devices", described(jax["devices"], f"the backend {jax['backend']}"))]
    for number, process in enumerate(jax.get("processes", [])):
        rows.append((f"process {number}", described(process["devices"], process["host"])))

    # Rates.
    rates = []
    for precision, rate in jax["flops"].items():
        of_sheet = nominal["flops"].get(precision)
        beside = f" (sheet {of_sheet / 1e9:,.0f})" if of_sheet else ""
        rates.append(f"{rate / 1e9:,.0f}{beside} GFLOP/s in {precision}")
    copies = f"{format_bytes(jax['copy_bytes_per_second'])}/s"
    if of_sheet := nominal.get("copy_bytes_per_second"):
        copies += f" (sheet {format_bytes(of_sheet)}/s)"
    rows += [
        ("a jitted step", format_seconds(jax["step_seconds"])),
        ("dots", ", ".join(rates)),
        ("memory speed", f"{copies}, host to device {format_bytes(jax['transfer_bytes_per_second'])}/s"),
    ]
    if "launch_seconds" in jax:
        link = jax["host_link_bytes_per_second"]
        pinned = f"{format_bytes(link)}/s from pinned memory" if link else "the backend has no pinned memory"
        rows += [("a small kernel", format_seconds(jax["launch_seconds"])), ("link to host", pinned)]
    return [*rows, ("process", f"{format_bytes(jax['process_bytes'])} for Python and JAX alone")]
