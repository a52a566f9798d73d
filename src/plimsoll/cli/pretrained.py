"""`plimsoll evaluate --pretrained` and `plimsoll sample --pretrained`: a Hugging Face model, put to use as it is."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro
from annotated_types import Ge, Interval

from plimsoll.cli.examples import OF_PRETRAINED
from plimsoll.cli.parse import Json, T, parse, request_of
from plimsoll.errors import PlimsollError
from plimsoll.processes.request import ask
from plimsoll.units import format_bytes, require_bounds

Folder = Annotated[
    str,
    tyro.conf.arg(metavar="FOLDER", help="Of a Hugging Face model (config.json, .safetensors), or its id on the hub."),
]
Bits = Annotated[
    Literal[32, 16, 8, 4] | None,
    tyro.conf.arg(help="Bits in which weights are kept: float32, bfloat16, int8, NF4. Left out: as in the files."),
]


Precision = Annotated[Literal["float32", "bfloat16"], tyro.conf.arg(help="Arithmetic of the dots.")]


@dataclass(frozen=True, kw_only=True)
class EvaluatePretrained:
    pretrained: Folder
    text: Annotated[
        str, tyro.conf.arg(metavar="FILE", help="A text, or anything that `plimsoll inspect` reads as one.")
    ]
    seq_len: Annotated[int | None, "count", Ge(1)] = None
    """Tokens of a window; each begins anew. Left out: what the model was made for, 2,048 at most."""
    batch_size: Annotated[int, "count", Ge(1)] = 8
    """Windows at a time."""
    max_examples: Annotated[int | None, "count"] = None
    """Documents to read; all if left out."""
    text_column: str = "text"
    """Column of .jsonl, .parquet and hub data sets."""
    frozen_bits: Bits = None
    precision: Precision = "float32"
    json: Json = False

    def __post_init__(self) -> None:
        require_bounds(self, PlimsollError)


@dataclass(frozen=True, kw_only=True)
class Writing:
    """Options of a text that a model writes, whether it is a run's or a pretrained one."""

    prompt: str = ""
    """What the text begins with; empty: the beginning of a document."""
    tokens: Annotated[int, "count", Ge(1)] = 200
    """Tokens at most; the model may end its document earlier."""
    temperature: Annotated[float, Interval(ge=0, lt=math.inf)] = 0.8
    """Divides the logits: 0 takes the likeliest token every time, 1 is the model's own distribution."""
    top_k: Annotated[int, Ge(0)] = 40
    """Draw among so many likeliest tokens; 0 for all."""
    seed: int = 0
    """The same seed writes the same text."""

    def __post_init__(self) -> None:
        require_bounds(self, PlimsollError)

    def print_text(self, verb: str, request: dict[str, Any], *, as_json: bool) -> int:
        """Asks a worker for the text, and prints it after its prompt. Returns the exit code."""
        # A terminal that is not UTF-8 hands over half characters, which no tokenizer takes.
        prompt = os.fsencode(self.prompt).decode("utf-8", "replace")
        answer = ask(verb, request | {"prompt": prompt})
        print(json.dumps(answer) if as_json else prompt + answer["text"])
        return 0


@dataclass(frozen=True, kw_only=True)
class SamplePretrained(Writing):
    pretrained: Folder
    frozen_bits: Bits = None
    precision: Precision = "float32"
    json: Json = False


def is_asked_for(arguments: list[str]) -> bool:
    """Returns whether a pretrained model is named instead of a run."""
    return any(word.partition("=")[0] == "--pretrained" for word in arguments)


def evaluate(arguments: list[str]) -> int:
    """Prints the loss of a text."""
    options = _parsed(EvaluatePretrained, arguments, "evaluate")
    answer = ask("evaluate_text", request_of(options))
    lines = [
        f"{answer['pretrained']} on {answer['text']}: {answer['documents']:,} documents, {answer['tokens']:,} tokens,"
        f" windows of {answer['seq_len']:,}",
        f"  loss           {answer['loss']:.4f} nats per token",
        f"  perplexity     {answer['perplexity']:.4f}",
        f"  bits_per_byte  {answer['bits_per_byte']:.4f}",
        f"  peak           {format_bytes(answer['peak_resident_bytes'])} resident",
    ]
    print(json.dumps(answer) if options.json else "\n".join(lines))
    return 0


def sample(arguments: list[str]) -> int:
    """Prints the prompt and what the model writes after it."""
    options = _parsed(SamplePretrained, arguments, "sample")
    return options.print_text("sample_text", request_of(options), as_json=options.json)


def _parsed(options: type[T], arguments: list[str], command: str) -> T:
    """Parses the options. In `--pretrained --help`, --help is no model's name: it stands alone where it is given."""
    words = ["--help"] if {"-h", "--help"} & set(arguments) else arguments
    return parse(options, words, program=f"plimsoll {command}", shown=OF_PRETRAINED[command])
