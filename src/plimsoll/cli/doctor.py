"""Command `plimsoll doctor`: what a run finds on this machine, and whether that is enough to train."""

from __future__ import annotations

import dataclasses
import json
import platform
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from plimsoll import cache
from plimsoll.cli.parse import Json, parse
from plimsoll.errors import PlimsollError
from plimsoll.files.provenance import DISTRIBUTION, installed_version
from plimsoll.units import GIB, MIB

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "tokenizers", "datasets")
LEAST_MEMORY = 512 * MIB
"""Memory below which no run is worth trying: the process of a small model takes 300 to 400 MiB."""
LEAST_DISK = GIB
LOW, HIGH = 1 / 3, 1.05
"""Share of a data sheet's rate below which, and above which, a measured one is doubtful. An H100 reached 0.81 of its
products and 0.9 of its memory (docs/chips.md), and nothing is above its sheet but a clock's mistake."""


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
    from plimsoll.api import accelerator, cluster
    from plimsoll.processes import environment

    member = cluster.membership(options.coordinator, options.processes, options.process, chip=options.chip)
    question = {} if member is None else {"together": dataclasses.asdict(member)}
    chosen: list[str] = []
    backend, not_usable = "cpu", ""
    try:
        if options.chip is not None:
            backend = accelerator.chip_named(options.chip).platform
        elif member is None:
            backend = accelerator.chip_here(chosen.append, batch=0).platform
    except PlimsollError as problem:  # a failure is a finding here
        if options.chip is not None:
            raise
        not_usable = str(problem)
    under = None if backend == "cpu" and member is None else environment.for_several(backend)
    result: dict[str, Any] = {
        "trains": chosen[0] if chosen else None,
        "versions": {"python": platform.python_version(), "plimsoll": installed_version(DISTRIBUTION)}
        | {name: installed_version(name) for name in PACKAGES},
        "memory": memory(),
        "disk": disk(Path(options.run)),
        "plugins": plugins(),
    }
    try:
        from plimsoll.processes.request import ask

        examined: dict[str, Any] = {"failed": not_usable} if not_usable else ask("doctor", question, under=under)
    except (PlimsollError, RuntimeError) as problem:
        examined = {"failed": str(problem)}
    if backend != "cpu" and examined.get("backend") == "cpu":  # JAX falls back to it without a word
        examined = {"failed": f"it finds only a CPU where {options.chip or 'an accelerator'} was asked for"}
    result["jax"] = examined
    result["sheet"] = sheet(str(examined["devices"][0]["kind"])) if "launch_seconds" in examined else None
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


def plugins() -> list[str]:
    """Returns the names of the JAX plug-ins that are installed.

    Each costs a CPU run 90 to 320 MiB unless it is hidden, as it is in training and compile processes.
    """
    registered = {entry.value.partition(":")[0] for entry in metadata.entry_points(group="jax_plugins")}
    folders = (Path(place, "jax_plugins") for place in sys.path if place)
    inside = {f"jax_plugins.{path.name}" for folder in folders if folder.is_dir() for path in folder.iterdir()}
    return sorted(name for name in registered | inside if not name.endswith("__"))


def sheet(kind: str) -> dict[str, Any] | None:
    """Returns the rates of a card's data sheet, named as measured ones are; None if no list of chips has the card.

    Args:
        kind: JAX's name of the card.
    """
    from plimsoll.planner import chips

    chip = chips.chip_called(kind)
    if chip is None:
        return None
    rates: dict[str, Any] = {"flops": dict(chip.flops), "copy_bytes_per_second": chip.memory_bandwidth}
    return rates | ({"host_link_bytes_per_second": chip.host_link_bandwidth} if chip.host_link_bandwidth else {})


def doubtful(measured: Mapping[str, Any], sheet: Mapping[str, Any]) -> list[str]:
    """Returns a sentence for each measured rate that the card's data sheet makes doubtful.

    Args:
        measured: Rates as `engine.machine.examine` returns them.
        sheet: Those of the data sheet, named alike.
    """
    pairs = {f"dots in {name}": (measured["flops"].get(name), rate) for name, rate in sheet["flops"].items()}
    for words, name in (("memory speed", "copy_bytes_per_second"), ("link to host", "host_link_bytes_per_second")):
        pairs[words] = measured.get(name), sheet.get(name)
    sentences = []
    for words, (rate, nominal) in pairs.items():
        if not rate or not nominal or LOW <= rate / nominal <= HIGH:
            continue
        why = (
            "something else uses the card, it is throttled, or its driver does not suit it"
            if rate < LOW * nominal
            else "either the sheet is of another card, or the measurement is wrong"
        )
        sentences.append(f"{words}: {rate / nominal:.0%} of the data sheet: {why}")
    return sentences


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
    from plimsoll.report.layout import all_labelled, format_known_bytes, labelled
    from plimsoll.units import format_bytes, format_seconds

    jax, ram, where = result["jax"], result["memory"], result["disk"]
    installed = ", ".join(f"{name} {version or 'missing'}" for name, version in result["versions"].items())
    hidden = ", ".join(result["plugins"]) + ": hidden from runs on cpu" if result["plugins"] else "none"
    cache_free, run_free = (f"{format_bytes(where[name])} free" for name in ("cache_free_bytes", "run_free_bytes"))
    held = f"{format_bytes(where['cache_bytes'])} of at most {format_bytes(where['cache_limit_bytes'])}"
    if where["cache_bytes"]:
        held += f" ({by_part(where['cache_parts_bytes'])})"
    if where["cache_runs_bytes"]:
        held += f", and runs of buckets {format_bytes(where['cache_runs_bytes'])}"
    lines = labelled("versions", installed)
    lines += labelled("by default", result["trains"]) if result.get("trains") else []
    if "failed" not in jax:
        nominal: dict[str, Any] = result.get("sheet") or {"flops": {}}
        rates = ", ".join(
            f"{rate / 1e9:,.0f}{_of_sheet(nominal['flops'].get(precision))} GFLOP/s in {precision}"
            for precision, rate in jax["flops"].items()
        )
        copied, moved = jax["copy_bytes_per_second"], jax["transfer_bytes_per_second"]
        sheet_copied = nominal.get("copy_bytes_per_second")
        copies = f"{format_bytes(copied)}/s" + (f" (sheet {format_bytes(sheet_copied)}/s)" if sheet_copied else "")
        kinds = ", ".join(device["kind"] for device in jax["devices"])
        lines += labelled("devices", f"{len(jax['devices'])} on the backend {jax['backend']}: {kinds}")
        for number, process in enumerate(jax.get("processes", [])):
            kinds = ", ".join(device["kind"] for device in process["devices"])
            lines += labelled(f"process {number}", f"{len(process['devices'])} on {process['host']}: {kinds}")
        lines += [
            *labelled("a jitted step", format_seconds(jax["step_seconds"])),
            *labelled("dots", rates),
            *labelled("memory speed", f"{copies}, host to device {format_bytes(moved)}/s"),
            *all_labelled(_of_card(jax)),
            *all_labelled(("doubtful", text) for text in (doubtful(jax, nominal) if len(nominal) > 1 else ())),
            *labelled("process", f"{format_bytes(jax['process_bytes'])} for Python and JAX alone"),
        ]
    limit = ram["cgroup_room_bytes"]
    lines += [
        *labelled("memory", f"{format_bytes(ram['total_bytes'])}, available {format_bytes(ram['available_bytes'])}"),
        *labelled("control group", "no limit" if limit is None else f"{format_known_bytes(limit)} left"),
        *labelled("default budget", f"{format_bytes(ram['default_budget_bytes'])} (--memory sets another)"),
        *labelled("cache", f"{where['cache_folder']}, {cache_free}: {held}"),
        *labelled("runs", f"{where['run_folder']}, {run_free}"),
        *labelled("JAX plug-ins", hidden),
    ]
    verdict = ["ready"] if result["ready"] else [f"to mend: {problem}" for problem in result["mend"]]
    return "\n".join([*lines, "", *verdict])


def _of_sheet(flops: float | None) -> str:
    """Returns the data sheet's rate in GFLOP/s, in brackets; empty where there is none."""
    return f" (sheet {flops / 1e9:,.0f})" if flops else ""


def _of_card(jax: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns rows that only a card has: what starting a kernel costs, and the link to pinned memory of the host."""
    from plimsoll.units import format_bytes, format_seconds

    if "launch_seconds" not in jax:
        return []
    link = jax["host_link_bytes_per_second"]
    pinned = f"{format_bytes(link)}/s from pinned memory" if link else "the backend has no pinned memory"
    return [("a small kernel", format_seconds(jax["launch_seconds"])), ("link to host", pinned)]
