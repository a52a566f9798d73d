"""`plimsoll export`: a language model that was trained here, as a Hugging Face folder."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Annotated

import tyro

from plimsoll.cli.parse import Json, parse
from plimsoll.processes.request import ask
from plimsoll.runs.folder import RunFolder
from plimsoll.runs.remote import fetched
from plimsoll.units import format_bytes


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    run: Annotated[
        tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN", help="Folder of the run, or its address in a bucket.")
    ]
    out: Annotated[
        str, tyro.conf.arg(metavar="FOLDER", help="New or empty; config.json, model.safetensors, tokenizer.")
    ]
    step: str = "best"
    """Checkpoint: a step's number, `last`, or `best` (lowest validation loss, else the last)."""
    json: Json = False


def export(arguments: list[str]) -> int:
    """Prints where the folder is."""
    options = parse(ExportOptions, arguments, program="plimsoll export")
    options = replace(options, run=fetched(options.run))
    RunFolder(options.run).read("recipe.json")  # what is no run is said before JAX starts
    found = ask("export", {"run": options.run, "step": options.step, "out": options.out})
    if options.json:
        print(json.dumps(found))
    else:
        print(
            f"{found['out']}: {found['parameters']:,} parameters of step {found['step']:,}"
            f" ({format_bytes(found['bytes'])}). `transformers` loads it, and so does `plimsoll sample --pretrained`"
        )
    return 0
