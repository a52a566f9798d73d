"""`plimsoll prepare`: data sets that are made, not downloaded."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from plimsoll import environment
from plimsoll.ask import ask
from plimsoll.cli.parse import parse
from plimsoll.errors import PlimsollError
from plimsoll.recipes.base import Count
from plimsoll.units import format_bytes, format_seconds, parse_count


@dataclass(frozen=True, kw_only=True)
class ControlOptions:
    samples: Count = 1_000_000
    """Windows to make, like 1M or 100M."""
    out: str = "windows.h5"
    """The HDF5 file. The same command continues what was interrupted."""
    seed: int = 42
    """Of the systems' variants, the starts and the noise."""
    window: int = 32
    """States of a window."""
    stride: int = 21
    """Steps from one window of a trajectory to the next."""
    uncertainty: float = 0.2
    """Parameters of a variant lie within this share of the nominal ones."""
    noise: float = 0.01
    """Standard deviation of what is added to every state after a step."""
    horizon: float = 50.0
    """Seconds of a trajectory."""
    dt: float = 0.02
    """Seconds of a step."""
    variants: int | None = None
    """Of each system; default 50, fewer for a small set."""
    held_out: float = 0.15
    """Share of the variants that are for validation: the last rows of the file."""
    chunk_rows: int = 512
    """Rows of a chunk of the file."""
    compression: Literal["lzf", "gzip", "none"] = "lzf"
    json: Annotated[bool, tyro.conf.arg(help="Print one JSON object and nothing else.")] = False


def prepare(arguments: list[str]) -> int:
    """Simulates and writes; progress goes to standard error."""
    what, words = (arguments[0], arguments[1:]) if arguments and not arguments[0].startswith("-") else ("", arguments)
    if what != "control" and words[:1] not in (["-h"], ["--help"]):
        raise PlimsollError(
            f"plimsoll prepare needs a recipe whose data is made, and that is control, got {what or 'none'}:"
            " `plimsoll prepare control --samples 1M --out windows.h5`"
        )
    options = parse(ControlOptions, _counted(words), program="plimsoll prepare control")
    asked = dataclasses.asdict(options)
    as_json = asked.pop("json")
    found = ask("prepare", asked, under=environment.for_making())
    print(json.dumps(found) if as_json else _text(found))
    return 0


def _counted(words: list[str]) -> list[str]:
    """`--samples 1M` as a number."""
    return [
        str(parse_count(word)) if before == "--samples" and not word.startswith("-") else word
        for before, word in zip(["", *words], words, strict=False)
    ]


def _text(found: dict) -> str:
    again = found["variants_drawn_again"]
    held_out = f"{found['variants_held_out']} of {found['variants']} variants of each system held out"
    lines = [
        f"{found['path']}: {found['examples']:,} windows, {format_bytes(found['bytes'])}, in"
        f" {format_seconds(found['seconds'])} ({found['examples_per_second']:,.0f} windows/s)",
        f"  to train on: {found['train_examples']:,}; {held_out}",
    ]
    if again:
        words = ", ".join(f"{name} {count}" for name, count in again.items())
        lines.append(f"  variants that were unstable under the nominal gain, and drawn again: {words}")
    return "\n".join(lines)
