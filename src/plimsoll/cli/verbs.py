"""Uses of what was trained: `plimsoll evaluate`, `sample`, `solve`, `rank` and `export`.

The rows are those of `api/use.py`, one function for all. `evaluate` and `sample` also take a Hugging Face model, with
options of its own. What is answered and printed is the recipe's (`recipes/verbs.py`).
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
    """A Hugging Face model that is used instead of a run."""

    group = "pretrained"

    pretrained: Annotated[str, Metavar("FOLDER")]
    """Folder of a Hugging Face model (config.json, .safetensors), or its id on the hub, instead of RUN."""
    frozen_bits: Literal[32, 16, 8, 4] | None = None
    """Bits in which weights are kept: float32, bfloat16, int8, NF4. Left out: as in the files."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the matrix products."""


@dataclass(frozen=True, kw_only=True)
class EvaluatePretrained(Pretrained):
    text: Annotated[str, Metavar("FILE")]
    """Text to read: a file, or anything that `plimsoll inspect` reads as text."""
    seq_len: PositiveCount | None = None
    """Tokens of a window; each is read on its own. By default what the model was made for, at most 2,048."""
    batch_size: PositiveCount = 8
    """Windows at a time."""
    max_examples: PositiveCount | None = None
    """Most documents to read. By default all."""
    text_column: str = "text"
    """Column that holds the text in .jsonl, .parquet and Hugging Face data sets."""


@dataclass(frozen=True, kw_only=True)
class SamplePretrained(Pretrained, Writing):
    """A text by a model as it is published."""


PRETRAINED: dict[str, type[Pretrained]] = {"evaluate": EvaluatePretrained, "sample": SamplePretrained}
"""Commands that take a published model instead of a run, and their options then."""


def answered(command: str, arguments: Sequence[str]) -> int:
    """Prints what a run answers, or a published model. Returns the exit code."""
    page = Page(program=f"plimsoll {command}", options=rows_of(command), example=COMMANDS[command].example)
    print_help(page, arguments)
    is_pretrained = any(split_word(word)[0] == "--pretrained" for word in arguments)
    rows = rows_of_pretrained(command) if is_pretrained else rows_of_run(command)
    values = read_words(rows, arguments, program=page.program)
    printed = Printed(json=values.pop("json", False))
    if "prompt" in values:  # a terminal that is not UTF-8 hands over half characters, which no tokenizer takes
        values["prompt"] = os.fsencode(values["prompt"]).decode("utf-8", "replace")

    # The answer, and how it is printed.
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
    """Returns every option of a command, each once."""
    rows = rows_of_run(command)
    if command in PRETRAINED:
        rows = (*rows, *rows_of_pretrained(command))
    return tuple({option.name: option for option in rows}.values())


def rows_of_run(command: str) -> tuple[Option, ...]:
    """Returns the options of a command that names a run."""
    return (*options_of(OfRun), *options_of(USES[command]))


def rows_of_pretrained(command: str) -> tuple[Option, ...]:
    """Returns the options of a command that names a published model."""
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
    "adapter": "`peft` loads it beside its model, and `plimsoll train finetune --init-from` goes on from it",
    "merged": "`transformers` loads it, and so does `plimsoll sample --pretrained`",
}
"""Form of an export to what it is for."""


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
"""What is printed of an answer, where the recipe has no words of its own."""
