"""`plimsoll prepare longcontext`: its options, and what it prints. `data/packed/prepare.py` packs the text."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plimsoll.data.packed.options import TextSet
from plimsoll.recipes.family import content_of
from plimsoll.units import format_bytes, format_seconds


@dataclass(frozen=True, kw_only=True)
class TextOptions(TextSet):
    """Options of `plimsoll prepare longcontext`."""

    out: str
    """The folder that is made. The same command continues what was interrupted."""
    workers: int | None = None
    """Threads that encode; default: one for each core. With --ray: blocks under way on the cluster, in pairs."""
    ray: str | None = None
    """Encode on a Ray cluster: its address, auto for the one that is running here, or local to start one."""


def make(options: TextOptions) -> dict[str, Any]:
    """Packs the text; progress goes to standard error."""
    from plimsoll.data.packed.prepare import build
    from plimsoll.data.progress import Left

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    how: dict[str, Any] = {"workers": options.workers, "ray": options.ray, "progress": Left(), "say": say}
    return build(content_of(options, TextSet), Path(options.out), **how)


def prepared_text(found: Mapping[str, Any]) -> str:
    """Returns what is printed of a folder that was made."""
    rate = found["tokens_per_second"]
    sizes = f"{found['tokens']:,} tokens of {found['documents']:,} documents, {format_bytes(found['bytes'])}"
    if found["finished_before"]:
        return f"{found['path']} is finished: {sizes}"
    return (
        f"{found['path']}: {sizes}, in {format_seconds(found['seconds'])} ({rate:,.0f} tokens/s)\n"
        f"  for validation: {found['validation_tokens']:,} tokens of {found['validation_documents']:,} documents\n"
        f"  ids: {found['dtype']}, of a vocabulary of {found['vocab_size']:,}"
    )
