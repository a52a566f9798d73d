"""`plimsoll sample`: text from a run, or from a Hugging Face model as it is."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Interval

from plimsoll.cli.parse import Json, parse, request_of
from plimsoll.cli.pretrained import Bits, Folder, Precision, RunOrPretrained, names_pretrained, parse_pretrained
from plimsoll.cli.verbs import BestByLoss, verb_of
from plimsoll.processes.request import ask
from plimsoll.runs.remote import fetched


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


@dataclass(frozen=True, kw_only=True)
class SampleOptions(Writing):
    run: RunOrPretrained
    step: BestByLoss = "best"
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class SamplePretrained(Writing):
    pretrained: Folder
    frozen_bits: Bits = None
    precision: Precision = "float32"
    json: Json = False


def sample(arguments: list[str]) -> int:
    """Prints the prompt and what the model writes after it."""
    if names_pretrained(arguments):
        options = parse_pretrained(SamplePretrained, arguments, "sample")
        verb, request = "sample_text", request_of(options)
    else:
        options = parse(SampleOptions, arguments, program="plimsoll sample")
        run = fetched(options.run)
        verb_of("sample", run)
        verb, request = "sample", request_of(options) | {"run": run}
    # A terminal that is not UTF-8 hands over half characters, which no tokenizer takes.
    prompt = os.fsencode(options.prompt).decode("utf-8", "replace")
    answer = ask(verb, request | {"prompt": prompt})
    print(json.dumps(answer) if options.json else prompt + answer["text"])
    return 0
