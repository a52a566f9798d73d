"""What `evaluate` and `sample` share where a Hugging Face model is named instead of a run: `--pretrained`."""

from __future__ import annotations

from typing import Annotated, Literal

import tyro

from plimsoll.cli.examples import OF_PRETRAINED
from plimsoll.cli.parse import T, parse

RunOrPretrained = Annotated[
    tyro.conf.Positional[str],
    tyro.conf.arg(metavar="RUN", help="Folder of the run, or its address; or, instead, --pretrained FOLDER."),
]
Folder = Annotated[
    str,
    tyro.conf.arg(metavar="FOLDER", help="Of a Hugging Face model (config.json, .safetensors), or its id on the hub."),
]
Bits = Annotated[
    Literal[32, 16, 8, 4] | None,
    tyro.conf.arg(help="Bits in which weights are kept: float32, bfloat16, int8, NF4. Left out: as in the files."),
]
Precision = Annotated[Literal["float32", "bfloat16"], tyro.conf.arg(help="Arithmetic of the dots.")]


def names_pretrained(arguments: list[str]) -> bool:
    """Returns whether a pretrained model is named instead of a run."""
    return any(word.partition("=")[0] == "--pretrained" for word in arguments)


def parse_pretrained(options: type[T], arguments: list[str], command: str) -> T:
    """Parses the options. In `--pretrained --help`, --help is no model's name: it stands alone where it is given."""
    words = ["--help"] if {"-h", "--help"} & set(arguments) else arguments
    return parse(options, words, program=f"plimsoll {command}", shown=OF_PRETRAINED[command])
