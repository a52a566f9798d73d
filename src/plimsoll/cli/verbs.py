"""Commands that use a trained model: `plimsoll evaluate`, `sample`, `solve`, `rank` and `export`.

One function serves all of them, with the options in `api/use.py`. `evaluate` and `sample` also take a Hugging Face
model, with other options. Functions of the run's recipe compute the answer and format it (`recipes/verbs.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any, Literal

from plimsoll.api.use import USES, Writing, use, verb_of
from plimsoll.cli.help import Page, print_help
from plimsoll.cli.main import COMMANDS
from plimsoll.cli.parse import OfRun, Printed, print_answer, read_words, split_word
from plimsoll.files.bucket import fetched
from plimsoll.options import Metavar, Option, Options, PositiveCount, options_of
from plimsoll.processes.request import ask
from plimsoll.recipes.verbs import resolved
from plimsoll.report.summary import evaluation_text
from plimsoll.units import format_bytes


@dataclass(frozen=True, kw_only=True)
class Pretrained(Options):
    """Options for a Hugging Face model instead of a run."""

    group = "pretrained"

    pretrained: Annotated[str, Metavar("FOLDER")]
    """Folder of a Hugging Face model (config.json, .safetensors), or its id on the hub, instead of RUN."""
    frozen_bits: Literal[32, 16, 8, 4] | None = None
    """Bits of each weight: 32 (float32), 16 (bfloat16), 8 (int8), 4 (NF4). By default as in the files."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Type in which matrix products are computed."""


@dataclass(frozen=True, kw_only=True)
class EvaluatePretrained(Pretrained):
    text: Annotated[str, Metavar("FILE")]
    """Text to evaluate: a file, or any other source that `plimsoll inspect` reads as text."""
    seq_len: PositiveCount | None = None
    """Tokens per window; the model reads each window alone. By default the model's longest input, at most 2,048."""
    batch_size: PositiveCount = 8
    """Number of windows that the model reads at a time."""
    max_examples: PositiveCount | None = None
    """Largest number of documents to read. By default all."""
    text_column: str = "text"
    """Column that holds the text in .jsonl, .parquet and Hugging Face data sets."""


@dataclass(frozen=True, kw_only=True)
class SamplePretrained(Pretrained, Writing):
    """Options of `sample` for a Hugging Face model."""


PRETRAINED: dict[str, type[Pretrained]] = {"evaluate": EvaluatePretrained, "sample": SamplePretrained}
"""Options for a Hugging Face model, by command. These commands take such a model instead of a run."""


def answered(command: str, arguments: Sequence[str]) -> int:
    """Runs a command on a trained run or a Hugging Face model, and prints the answer. Returns the exit code."""
    page = Page(program=f"plimsoll {command}", options=rows_of(command), example=COMMANDS[command].example)
    print_help(page, arguments)
    is_pretrained = any(split_word(word)[0] == "--pretrained" for word in arguments)
    rows = rows_of_pretrained(command) if is_pretrained else rows_of_run(command)
    values = read_words(rows, arguments, program=page.program)
    printed = Printed(json=values.pop("json", False))
    if "prompt" in values:  # a terminal that is not UTF-8 gives surrogates, which tokenizers refuse
        values["prompt"] = os.fsencode(values["prompt"]).decode("utf-8", "replace")

    # Compute the answer and print it.
    if is_pretrained:
        verb = f"{command}_text"
        answer = ask(verb, asdict(PRETRAINED[command](**values)))
        return print_answer(printed, answer, TEXTS[verb])
    run = values.pop("run")
    options = USES[command](**values)
    run = fetched(run)
    own = verb_of(command, run).text
    return print_answer(printed, use(command, run, options), resolved(own) if own else TEXTS[command])


evaluate = partial(answered, "evaluate")
sample = partial(answered, "sample")
solve = partial(answered, "solve")
rank = partial(answered, "rank")
export = partial(answered, "export")


def rows_of(command: str) -> tuple[Option, ...]:
    """Returns all options of a command, for a run and for a Hugging Face model, without duplicates."""
    rows = rows_of_run(command)
    if command in PRETRAINED:
        rows = (*rows, *rows_of_pretrained(command))
    return tuple({option.name: option for option in rows}.values())


def rows_of_run(command: str) -> tuple[Option, ...]:
    """Returns the options of a command for use with a run."""
    return (*options_of(OfRun), *options_of(USES[command]))


def rows_of_pretrained(command: str) -> tuple[Option, ...]:
    """Returns the options of a command for use with a Hugging Face model."""
    return (*options_of(PRETRAINED[command]), *options_of(Printed))


def _written(answer: Mapping[str, Any]) -> str:
    return answer["prompt"] + answer["text"]


def _measured(answer: Mapping[str, Any]) -> str:
    lines = [
        f"{answer['pretrained']} on {answer['text']}: {answer['documents']:,} documents, {answer['tokens']:,} tokens,"
        f" windows of {answer['seq_len']:,}",
        f"  loss           {answer['loss']:.4f} nats per token",
        f"  perplexity     {answer['perplexity']:.4f}",
        f"  bits_per_byte  {answer['bits_per_byte']:.4f}",
        f"  peak           {format_bytes(answer['peak_resident_bytes'])} resident",
    ]
    return "\n".join(lines)


LOADS = {
    "adapter": "`peft` loads it beside its model, and `plimsoll train finetune --init-from` continues from it",
    "merged": "`transformers` loads it, and so does `plimsoll sample --pretrained`",
}
"""Sentences about the use of an exported model, by form of the export."""


def _exported(answer: Mapping[str, Any]) -> str:
    lines = []
    for form, use_of_it in LOADS.items():
        if form not in answer:
            continue
        facts = answer[form]
        size = f"{facts['parameters']:,} parameters of step {answer['step']:,} ({format_bytes(facts['bytes'])})"
        lines.append(f"{facts['out']}: {size}. {use_of_it}")
    return "\n".join(lines)


TEXTS: dict[str, Callable[[Any], str]] = {
    "evaluate": evaluation_text,
    "evaluate_text": _measured,
    "sample": _written,
    "sample_text": _written,
    "export": _exported,
}
"""Functions that format answers as text, by command, for recipes without a function of their own."""
