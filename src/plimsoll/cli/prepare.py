"""`plimsoll prepare`: data sets that are made, not downloaded."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Annotated

import tyro

from plimsoll import environment
from plimsoll.ask import ask
from plimsoll.builders.control_set import ControlSet
from plimsoll.cli.parse import parse
from plimsoll.errors import PlimsollError
from plimsoll.recipes.base import Count
from plimsoll.units import format_bytes, format_seconds


@dataclass(frozen=True, kw_only=True)
class ControlOptions(ControlSet):
    samples: Count = 1_000_000
    """Windows to make, like 1M or 100M."""
    out: str = "windows.h5"
    """The HDF5 file. The same command continues what was interrupted."""
    json: Annotated[bool, tyro.conf.arg(help="Print one JSON object and nothing else.")] = False


@dataclass(frozen=True, kw_only=True)
class RechunkOptions:
    old: tyro.conf.Positional[str]
    """The HDF5 file to write anew."""
    out: str
    """The new file."""
    chunk_rows: Count = 512
    """Rows of a chunk."""
    json: Annotated[bool, tyro.conf.arg(help="Print one JSON object and nothing else.")] = False


def prepare(arguments: list[str]) -> int:
    """Simulates and writes, or writes a file anew; progress goes to standard error."""
    what, words = (arguments[0], arguments[1:]) if arguments and not arguments[0].startswith("-") else ("", arguments)
    if arguments[:1] == ["--rechunk"]:
        what, words = "rechunk", arguments[1:]
    if what == "rechunk":
        return _rechunk(words)
    if what != "control" and words[:1] not in (["-h"], ["--help"]):
        raise PlimsollError(
            f"plimsoll prepare needs to know what: control, whose data is made, or rechunk, got {what or 'nothing'}:"
            " `plimsoll prepare control --samples 1M --out windows.h5`, `plimsoll prepare rechunk old.h5 --out new.h5`"
        )
    options = parse(ControlOptions, words, program="plimsoll prepare control")
    asked = dataclasses.asdict(options)
    as_json = asked.pop("json")
    found = ask("prepare", asked, under=environment.for_making())
    print(json.dumps(found) if as_json else _text(found))
    return 0


def _rechunk(words: list[str]) -> int:
    asked = dataclasses.asdict(parse(RechunkOptions, words, program="plimsoll prepare rechunk"))
    as_json = asked.pop("json")
    found = ask("rechunk", asked, under=environment.for_making())
    text = (
        f"{found['path']}: {found['rows']:,} rows of {found['datasets']} datasets in chunks of {found['chunk_rows']:,},"
        f" {format_bytes(found['bytes'])} (before {format_bytes(found['bytes_before'])}), in"
        f" {format_seconds(found['seconds'])}"
    )
    print(json.dumps(found) if as_json else text)
    return 0


def _text(found: dict) -> str:
    again = found["variants_drawn_again"]
    held_out = f"{found['variants_held_out']} of {found['variants']} variants of each system held out"
    lines = [
        f"{found['path']}: {found['examples']:,} windows, {format_bytes(found['bytes'])}, in"
        f" {format_seconds(found['seconds'])} ({found['examples_per_second']:,.0f} windows/s)",
        f"  to train on: {found['train_examples']:,}; {held_out}",
    ]
    if found["trajectories_drawn_again"]:
        lines.append(f"  trajectories that ran away, and were simulated again: {found['trajectories_drawn_again']:,}")
    if again:
        words = ", ".join(f"{name} {count}" for name, count in again.items())
        lines.append(f"  variants that were unstable under the nominal gain, and drawn again: {words}")
    return "\n".join(lines)
