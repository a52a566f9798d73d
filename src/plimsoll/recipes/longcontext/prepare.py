"""Options and text output of `plimsoll prepare longcontext`. `data/packed/prepare.py` packs the text."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from plimsoll.data.text.options import TextSet
from plimsoll.recipes.family import content_of
from plimsoll.units import format_bytes, format_seconds


@dataclass(frozen=True, kw_only=True)
class TextOptions(TextSet):
    """Options of `plimsoll prepare longcontext`."""

    out: str
    """New folder for the packed text. The same command continues an interrupted one."""
    workers: int | None = None
    """Threads that encode text. By default one for each core. With --ray: cores of the cluster to use, each for two
    blocks of text at a time."""
    ray: str | None = None
    """Ray cluster to encode on: its address, auto for the running one, or local to start one. By default text is
    encoded in this process."""


def make(options: TextOptions) -> dict[str, Any]:
    """Packs the text; progress goes to standard error."""
    from plimsoll.data.packed.prepare import build
    from plimsoll.data.progress import Spoken

    return build(
        content_of(options, TextSet),
        Path(options.out),
        workers=options.workers,
        ray=options.ray,
        progress=Spoken(),
        say=partial(print, file=sys.stderr, flush=True),
    )


def prepared_text(answer: Mapping[str, Any]) -> str:
    """Returns the text that `plimsoll prepare longcontext` prints."""
    rate = answer["tokens_per_second"]
    sizes = f"{answer['tokens']:,} tokens of {answer['documents']:,} documents, {format_bytes(answer['bytes'])}"
    if answer["finished_before"]:
        return f"{answer['path']} is finished: {sizes}"
    return (
        f"{answer['path']}: {sizes}, in {format_seconds(answer['seconds'])} ({rate:,.0f} tokens/s)\n"
        f"  for validation: {answer['validation_tokens']:,} tokens of {answer['validation_documents']:,} documents\n"
        f"  ids: {answer['dtype']}, of a vocabulary of {answer['vocab_size']:,}"
    )
