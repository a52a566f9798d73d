"""`plimsoll chips`: what can be planned for, where its figures are from, and the compilers for what is not here."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from plimsoll.cli.parse import Json, parse
from plimsoll.planner.chips import Chip


@dataclass(frozen=True, kw_only=True)
class ChipsOptions:
    name: Annotated[
        tyro.conf.Positional[str],
        tyro.conf.arg(metavar="[NAME]", help="One chip, with its sources, or a family of TPU slices, with its sizes."),
    ] = ""
    install: Literal["tpu", "cuda"] | None = None
    """Make the environment that compiles for TPUs (0.7 GB) or for NVIDIA GPUs (4.1 GB), then list."""
    json: Json = False


def chips(arguments: list[str]) -> int:
    """Prints all chips, or one with the source of each figure."""
    options = parse(ChipsOptions, arguments, program="plimsoll chips")
    from plimsoll.planner import chips as catalogue
    from plimsoll.processes import toolchains

    every = catalogue.chips()
    found = every if not options.name else _family(every, options.name) or [catalogue.chip(options.name)]
    if options.install is not None:
        toolchains.install(options.install, lambda line: print(line, file=sys.stderr))
    state = {
        name: {"folder": str(toolchains.folder(name)), "missing": toolchains.missing(name)}
        for name in toolchains.PLATFORMS
    }
    if options.json:
        print(json.dumps({"chips": [dataclasses.asdict(each) for each in found], "compilers": state}))
    elif options.name and len(found) == 1:
        print(_one(found[0]))
    else:
        rows = [_row(each.name, [each]) for each in found] if options.name else _grouped(every)
        print("\n".join([*_table(rows), "", *_compilers(state), "", *_closing()]))
    return 0


def _family(every: Sequence[Chip], name: str) -> list[Chip]:
    return [each for each in every if each.platform == "tpu" and each.name.rpartition("-")[0] == name]


def _grouped(every: Sequence[Chip]) -> list[list[str]]:
    """A line per chip, and one per family of slices."""
    groups: dict[str, list[Chip]] = {}
    for each in every:
        label = f"{each.name.rpartition('-')[0]}-N" if each.platform == "tpu" else each.name
        groups.setdefault(label, []).append(each)
    return [_row(label, group) for label, group in groups.items()]


def _row(label: str, group: Sequence[Chip]) -> list[str]:
    from plimsoll.planner.chip_file import PRECISIONS
    from plimsoll.units import format_bytes

    some = group[0]
    return [
        label,
        _range([each.devices for each in group]),
        _range([each.hosts for each in group]),
        format_bytes(some.memory_bytes),
        *(_tera(some.flops.get(precision)) for precision in PRECISIONS),
        _giga(some.memory_bandwidth),
        _giga(max(each.link_bandwidth for each in group)),
    ]


def _table(rows: list[list[str]]) -> list[str]:
    from plimsoll.report.layout import columns

    units = ["", "", "", "of each", *["TFLOP/s"] * 4, "GB/s", "GB/s"]
    header = ["chip", "devices", "hosts", "memory", "float32", "tf32", "bfloat16", "float16", "memory", "links"]
    return columns([header, units, *rows], align="lrrrrrrrrr", indent=0)


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _tera(rate: float | None) -> str:
    return "-" if rate is None else f"{rate / 1e12:,.4g}"


def _giga(rate: float) -> str:
    return f"{rate / 1e9:,.0f}" if rate else "-"


def _compilers(state: Mapping[str, Mapping[str, Any]]) -> list[str]:
    from plimsoll.report.layout import labelled

    lines = []
    for name, found in state.items():
        how = f"`plimsoll chips --install {name}` makes it; until then plans for these chips are estimated"
        text = f"{found['missing']}: {how}" if found["missing"] else f"installed in {found['folder']}"
        lines += labelled(f"{name} compiler", text, indent=0)
    return lines


def _closing() -> list[str]:
    return [
        "Rates are dense and of one device; float32 is at the highest precision. None was held against a",
        "card. The cpu is this machine: its rates are measured when it is planned for. `h100x8` are eight in",
        "one machine, `plimsoll chips tpu-v4` lists the sizes of a family, `plimsoll chips h100` the sources.",
    ]


def _one(chip: Chip) -> str:
    from plimsoll.report.layout import labelled
    from plimsoll.units import format_bytes

    hosts = "1 host" if chip.hosts == 1 else f"{chip.hosts:,} hosts"
    devices = "1 device" if chip.devices == 1 else f"{chip.devices:,} devices"
    rates = ", ".join(f"{precision} {_tera(rate)}" for precision, rate in chip.flops.items())
    figures = {"memory_bytes": ("memory", f"{format_bytes(chip.memory_bytes)} of each device")}
    if chip.platform == "cpu":
        figures["flops"] = ("rates", "measured when it is planned for")
    else:
        told = ", ".join(f"{name} {value}" for name, value in chip.compiler.items())
        links = f"{_giga(chip.link_bandwidth)} GB/s each way" if chip.link_bandwidth else "none: it is alone"
        figures |= {
            "flops": ("dots", f"TFLOP/s, dense: {rates}"),
            "memory_bandwidth": ("memory speed", f"{_giga(chip.memory_bandwidth)} GB/s"),
            "link_bandwidth": ("links", links),
            "compiler": ("compiler is told", told),
        }
    if chip.host_link_bandwidth:
        figures["host_link_bandwidth"] = ("link to host", f"{_giga(chip.host_link_bandwidth)} GB/s each way")
    if chip.host_memory_bytes is not None:
        figures["host_memory_bytes"] = ("host memory", f"{format_bytes(chip.host_memory_bytes)} of each host")
    lines = [f"{chip.name}: {devices} on {hosts} ({chip.platform})"]
    for figure, (label, text) in figures.items():
        lines += ["", *labelled(label, text)]
        lines += labelled("", f"from: {chip.sources[figure]}") if figure in chip.sources else []
    return "\n".join(lines)
