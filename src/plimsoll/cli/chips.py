"""Command `plimsoll chips`: the chips that can be planned for, the sources of their figures, and their compilers."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Annotated, Literal

from plimsoll.cli.parse import parse, print_answer
from plimsoll.options import Argument, Json, Options
from plimsoll.planner.chips import Chip


@dataclass(frozen=True, kw_only=True)
class ChipsOptions(Options):
    name: Annotated[str, Argument("[NAME]")] = ""
    """Name of a chip, to show its sources, or of a family of TPU slices, to show its sizes."""
    install: Literal["tpu", "cuda"] | None = None
    """Install the compiler for TPUs (0.7 GB) or NVIDIA GPUs (4.1 GB) into an environment of its own, then list the
    chips. By default nothing is installed."""
    json: Json = False


def chips(arguments: list[str]) -> int:
    """Prints all chips, a family of slices, or one chip with the source of each figure. Returns the exit code."""
    options = parse(ChipsOptions, arguments, command="chips")
    from plimsoll.planner import chips as catalogue
    from plimsoll.processes import toolchains

    selected = catalogue.chips()
    if options.name:
        family = [chip for chip in selected if _family(chip) == options.name.lower()]
        selected = family or [catalogue.chip(options.name)]
    if options.install is not None:
        toolchains.install(options.install, lambda line: print(line, file=sys.stderr))
    answer = {
        "chips": [dataclasses.asdict(chip) for chip in selected],
        "compilers": {name: toolchains.missing(name) for name in toolchains.KITS},
    }
    if options.name and len(selected) == 1:
        return print_answer(options, answer, lambda _: _described(selected[0]))

    # Without a name, print one line for each family of TPU slices.
    of_line = attrgetter("name") if options.name else _family
    groups = [[*group] for _, group in groupby(selected, of_line)]
    return print_answer(options, answer, lambda answer: _listed(groups, answer["compilers"]))


def _family(chip: Chip) -> str:
    """Returns the name of a chip; for a TPU, without the size of the slice."""
    return chip.name.rpartition("-")[0] if chip.platform == "tpu" else chip.name


NOTES = (
    "Figures of one device: memory, dense TFLOP/s, and GB/s of memory and links, from data sheets.",
    "float32 is at the highest precision. Two cards were measured: the share of an H100's rates that",
    "steps reach, and an H200's rates. The cpu is this machine: planning measures its rates.",
    "`h100x8` is eight H100 in one machine. `plimsoll chips tpu-v4` lists the sizes of a family,",
    "`plimsoll chips h100` the sources.",
)
"""Lines below the table of chips."""


def _listed(groups: Sequence[Sequence[Chip]], compilers: Mapping[str, str | None]) -> str:
    """Returns a table with a line per group of chips, and a line per compiler. A group's chips differ only in size."""
    from plimsoll.planner.chip_file import PRECISIONS
    from plimsoll.report.layout import columns, known, labelled
    from plimsoll.units import format_bytes

    rows = [["chip", "devices", "hosts", "memory", *PRECISIONS, "bandwidth", "links"]]
    for group in groups:
        first, last = group[0], group[-1]
        row = [
            first.name if first is last else f"{_family(first)}-N",
            _from_to(first.devices, last.devices),
            _from_to(first.hosts, last.hosts),
            format_bytes(first.memory_bytes),
            *(known(first.flops.get(precision), lambda rate: f"{rate / 1e12:,.4g}") for precision in PRECISIONS),
            _giga(first.memory_bandwidth),
            _giga(last.link_bandwidth),
        ]
        rows.append(row)
    lines = [*columns(rows, align="lrrrrrrrrr", indent=0), ""]
    for name, missing in compilers.items():
        how = f"`plimsoll chips --install {name}` makes it; until then plans for these chips are estimated"
        lines += labelled(f"{name} compiler", f"{missing}: {how}" if missing else "installed", indent=0)
    return "\n".join([*lines, "", *NOTES])


def _from_to(least: int, most: int) -> str:
    return f"{least:,}" if least == most else f"{least:,}-{most:,}"


def _giga(rate: float) -> str:
    return f"{rate / 1e9:,.0f}" if rate else "-"


def _described(chip: Chip) -> str:
    """Returns text with a chip's figures, each with its source."""
    from plimsoll.report.layout import figure, labelled

    lines = [f"{chip.name} ({chip.platform}), devices: {chip.devices:,}, hosts: {chip.hosts:,}"]
    figures = {**vars(chip), **chip.kernels}
    for name, source in chip.sources.items():
        text = figure(name, figures[name])
        lines += ["", *labelled(name.replace("_", " "), text), *labelled("", f"from: {source}")]
    return "\n".join(lines)
