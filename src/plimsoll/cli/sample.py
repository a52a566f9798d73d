"""`plimsoll sample`: text from a run, or from a Hugging Face model as it is."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll.api import use
from plimsoll.api.use import Writing
from plimsoll.cli.evaluate import Pretrained, RunOrPretrained, parse_either
from plimsoll.cli.parse import Step, request_of
from plimsoll.options import Json
from plimsoll.processes.request import ask


@dataclass(frozen=True, kw_only=True)
class SampleOptions(Writing):
    run: RunOrPretrained
    step: Step = "best"
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class SamplePretrained(Pretrained, Writing):
    json: Json = False


def sample(arguments: Sequence[str]) -> int:
    """Prints the prompt and what the model writes after it."""
    options = parse_either(SampleOptions, SamplePretrained, arguments, command="sample")
    # A terminal that is not UTF-8 hands over half characters, which no tokenizer takes.
    prompt = os.fsencode(options.prompt).decode("utf-8", "replace")
    options = dataclasses.replace(options, prompt=prompt)
    if isinstance(options, SamplePretrained):
        answer = ask("sample_text", request_of(options))
    else:
        answer = use.sample(options.run, options, step=options.step)
    print(json.dumps(answer) if options.json else prompt + answer["text"])
    return 0
