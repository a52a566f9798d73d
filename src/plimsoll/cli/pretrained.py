"""`plimsoll evaluate --pretrained` and `plimsoll sample --pretrained`: a Hugging Face model, put to use as it is."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from plimsoll.cli.examples import OF_PRETRAINED
from plimsoll.cli.parse import Json, parse
from plimsoll.errors import PlimsollError
from plimsoll.processes.request import ask
from plimsoll.units import format_bytes

Folder = Annotated[
    str,
    tyro.conf.arg(metavar="FOLDER", help="Of a Hugging Face model (config.json, .safetensors), or its id on the hub."),
]
Bits = Annotated[
    Literal[32, 16, 8, 4] | None,
    tyro.conf.arg(help="Bits in which weights are kept: float32, bfloat16, int8, NF4. Left out: as in the files."),
]


@dataclass(frozen=True, kw_only=True)
class EvaluatePretrained:
    pretrained: Folder
    text: Annotated[
        str, tyro.conf.arg(metavar="FILE", help="A text, or anything that `plimsoll inspect` reads as one.")
    ]
    seq_len: Annotated[int | None, "count"] = None
    """Tokens of a window; each begins anew. Left out: what the model was made for, 2,048 at most."""
    batch_size: Annotated[int, "count"] = 8
    """Windows at a time."""
    max_examples: Annotated[int | None, "count"] = None
    """Documents to read; all if left out."""
    text_column: str = "text"
    """Column of .jsonl, .parquet and hub data sets."""
    frozen_bits: Bits = None
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the dots."""
    json: Json = False

    def __post_init__(self) -> None:
        if self.seq_len is not None and self.seq_len < 1:
            raise PlimsollError(f"--seq-len must be 1 or more, got {self.seq_len}")
        if self.batch_size < 1:
            raise PlimsollError(f"--batch-size must be 1 or more, got {self.batch_size}")


@dataclass(frozen=True, kw_only=True)
class SamplePretrained:
    pretrained: Folder
    prompt: str = ""
    """What the text begins with; empty: the beginning of a document."""
    tokens: Annotated[int, "count"] = 200
    """Tokens at most; the model may end its document earlier."""
    temperature: float = 0.8
    """Divides the logits: 0 takes the likeliest token every time, 1 is the model's own distribution."""
    top_k: int = 40
    """Draw among so many likeliest tokens; 0 for all."""
    seed: int = 0
    """The same seed writes the same text."""
    frozen_bits: Bits = None
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the dots."""
    json: Json = False

    def __post_init__(self) -> None:
        from plimsoll.cli.parse import require_drawable

        require_drawable(tokens=self.tokens, temperature=self.temperature, top_k=self.top_k)


def is_asked_for(arguments: list[str]) -> bool:
    """Returns whether a pretrained model is named instead of a run."""
    return any(word.partition("=")[0] == "--pretrained" for word in arguments)


def evaluate(arguments: list[str]) -> int:
    """Prints the loss of a text."""
    options = parse(
        EvaluatePretrained, _help_last(arguments), program="plimsoll evaluate", shown=OF_PRETRAINED["evaluate"]
    )
    found = ask("evaluate_text", _question(options))
    print(json.dumps(found) if options.json else _table(found))
    return 0


def sample(arguments: list[str]) -> int:
    """Prints the prompt and what the model writes after it."""
    options = parse(SamplePretrained, _help_last(arguments), program="plimsoll sample", shown=OF_PRETRAINED["sample"])
    # A terminal that is not UTF-8 hands over half characters, which no tokenizer takes.
    prompt = os.fsencode(options.prompt).decode("utf-8", "replace")
    found = ask("sample_text", _question(options) | {"prompt": prompt})
    print(json.dumps(found) if options.json else prompt + found["text"])
    return 0


def _help_last(arguments: list[str]) -> list[str]:
    """Returns --help alone where it stands among the arguments: in `--pretrained --help` it names no model."""
    return ["--help"] if {"-h", "--help"} & set(arguments) else arguments


def _question(options: EvaluatePretrained | SamplePretrained) -> dict:
    return {name: value for name, value in dataclasses.asdict(options).items() if name != "json"}


def _table(found: dict) -> str:
    lines = [
        f"{found['pretrained']} on {found['text']}: {found['documents']:,} documents, {found['tokens']:,} tokens,"
        f" windows of {found['seq_len']:,}",
        f"  loss           {found['loss']:.4f} nats per token",
        f"  perplexity     {found['perplexity']:.4f}",
        f"  bits_per_byte  {found['bits_per_byte']:.4f}",
        f"  peak           {format_bytes(found['peak_resident_bytes'])} resident",
    ]
    return "\n".join(lines)
