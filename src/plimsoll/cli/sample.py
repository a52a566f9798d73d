"""`plimsoll sample`: text from a run, or from a Hugging Face model as it is."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass

from plimsoll.api import use
from plimsoll.api.use import Writing
from plimsoll.cli.parse import Json, parse, request_of
from plimsoll.cli.pretrained import Bits, Folder, Precision, RunOrPretrained, names_pretrained, parse_pretrained
from plimsoll.cli.verbs import BestByLoss
from plimsoll.processes.request import ask


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
    else:
        options = parse(SampleOptions, arguments, program="plimsoll sample")
    # A terminal that is not UTF-8 hands over half characters, which no tokenizer takes.
    prompt = os.fsencode(options.prompt).decode("utf-8", "replace")
    options = dataclasses.replace(options, prompt=prompt)
    if isinstance(options, SamplePretrained):
        answer = ask("sample_text", request_of(options))
    else:
        answer = use.sample(options.run, options, step=options.step)
    print(json.dumps(answer) if options.json else prompt + answer["text"])
    return 0
