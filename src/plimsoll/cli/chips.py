"""Command `plimsoll chips`: the chips that can be planned for, the sources of their figures, and their compilers."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from plimsoll.cli.parse import parse
from plimsoll.options import Argument, Json, Options
from plimsoll.planner.chips import Chip


@dataclass(frozen=True, kw_only=True)
class ChipsOptions(Options):
    name: Annotated[str, Argument("[NAME]")] = ""
    """One chip, with its sources, or a family of TPU slices, with its sizes."""
    install: Literal["tpu", "cuda"] | None = None
    """Install the compiler for TPUs (0.7 GB) or NVIDIA GPUs (4.1 GB) into an environment of its own, then list the
    chips. By default nothing is installed."""
    json: Json = False


def chips(arguments: list[str]) -> int:
    """Prints all chips, a family of slices, or one chip with the source of each figure. Returns the exit code."""
    options = parse(ChipsOptions, arguments, command="chips")
    from plimsoll.planner import chips as catalogue
    from plimsoll.processes import toolchains
    from plimsoll.report.layout import labelled

    every = catalogue.chips()
    family = [each for each in every if each.platform == "tpu" and each.name.rpartition("-")[0] == options.name.lower()]
    selected = every if not options.name else family or [catalogue.chip(options.name)]
    if options.install is not None:
        toolchains.install(options.install, lambda line: print(line, file=sys.stderr))
    state = {
        name: {"folder": str(toolchains.folder(name)), "missing": toolchains.missing(name)} for name in toolchains.KITS
    }
    if options.json:
        print(json.dumps({"chips": [dataclasses.asdict(each) for each in selected], "compilers": state}))
    elif options.name and len(selected) == 1:
        print(_described(selected[0]))
    else:
        groups: dict[str, list[Chip]] = {}
        for each in selected:  # without a name, a line for each family of slices
            in_family = not options.name and each.platform == "tpu"
            groups.setdefault(f"{each.name.rpartition('-')[0]}-N" if in_family else each.name, []).append(each)
        compilers = []
        for name, compiler in state.items():
            how = f"`plimsoll chips --install {name}` makes it; until then plans for these chips are estimated"
            text = f"{compiler['missing']}: {how}" if compiler["missing"] else f"installed in {compiler['folder']}"
            compilers += labelled(f"{name} compiler", text, indent=0)
        print("\n".join([*_table(groups), "", *compilers, "", *NOTES]))
    return 0


NOTES = (
    "Rates are dense and of one device, from data sheets; float32 is at the highest precision. Two cards",
    "were measured: what steps reach of an H100's, and what an H200 multiplies and copies. The cpu is",
    "this machine: its rates are measured when it is planned for. `h100x8` are eight in one machine,",
    "`plimsoll chips tpu-v4` lists the sizes of a family, `plimsoll chips h100` the sources.",
)
"""Lines below the table."""


def _table(groups: Mapping[str, Sequence[Chip]]) -> list[str]:
    """Returns a line per group, whose chips differ in their number of devices and hosts alone."""
    from plimsoll.planner.chip_file import PRECISIONS
    from plimsoll.report.layout import columns, known
    from plimsoll.units import format_bytes

    units = ["", "", "", "of each", *["TFLOP/s"] * 4, "GB/s", "GB/s"]
    rows = [["chip", "devices", "hosts", "memory", "float32", "tf32", "bfloat16", "float16", "memory", "links"], units]
    for label, group in groups.items():
        first = group[0]
        devices, hosts = [each.devices for each in group], [each.hosts for each in group]
        row = [
            label,
            *(f"{min(n):,}" if min(n) == max(n) else f"{min(n):,}-{max(n):,}" for n in (devices, hosts)),
            format_bytes(first.memory_bytes),
            *(known(first.flops.get(precision), lambda rate: f"{rate / 1e12:,.4g}") for precision in PRECISIONS),
            _giga(first.memory_bandwidth),
            _giga(max(each.link_bandwidth for each in group)),
        ]
        rows.append(row)
    return columns(rows, align="lrrrrrrrrr", indent=0)


def _giga(rate: float) -> str:
    return f"{rate / 1e9:,.0f}" if rate else "-"


def _described(chip: Chip) -> str:
    """Returns a chip's figures, each with its source."""
    from plimsoll.report.layout import labelled
    from plimsoll.units import format_bytes

    figures = {"memory_bytes": f"{format_bytes(chip.memory_bytes)} of each device"}
    if chip.platform == "cpu":
        figures["flops"] = "measured when it is planned for"
    else:
        rates = ", ".join(f"{precision} {rate / 1e12:,.4g}" for precision, rate in chip.flops.items())
        figures |= {
            "flops": f"TFLOP/s, dense: {rates}",
            "memory_bandwidth": f"{_giga(chip.memory_bandwidth)} GB/s",
            "link_bandwidth": f"{_giga(chip.link_bandwidth)} GB/s each way",
            "compiler": ", ".join(f"{name} {value}" for name, value in chip.compiler.items()),
        }
    for figure, value in chip.kernels.items():
        figures[figure] = f"{value:.3g}"
    if chip.host_link_bandwidth:
        figures["host_link_bandwidth"] = f"{_giga(chip.host_link_bandwidth)} GB/s each way"
    if chip.host_memory_bytes is not None:
        figures["host_memory_bytes"] = f"{format_bytes(chip.host_memory_bytes)} of each host"
    lines = [f"{chip.name} ({chip.platform}), devices: {chip.devices:,}, hosts: {chip.hosts:,}"]
    for figure, text in figures.items():
        lines += ["", *labelled(figure.replace("_", " "), text)]
        lines += labelled("", f"from: {chip.sources[figure]}") if figure in chip.sources else []
    return "\n".join(lines)
