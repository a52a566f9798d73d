"""`plimsoll evaluate`: the metrics of a run's checkpoint, or the loss of a Hugging Face model on a text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

from annotated_types import Ge

from plimsoll.api import use
from plimsoll.cli.help import Page
from plimsoll.cli.main import COMMANDS
from plimsoll.cli.parse import print_answer, request_of, values_typed
from plimsoll.files.bucket import fetched
from plimsoll.files.run_folder import RunFolder
from plimsoll.options import Argument, Count, Json, Metavar, Options, Text, options_of
from plimsoll.processes.request import ask
from plimsoll.recipes.saved import class_of
from plimsoll.recipes.verbs import Verb, resolved
from plimsoll.report.summary import evaluation_text
from plimsoll.units import format_bytes

RunOrPretrained = Annotated[
    str, Argument("RUN"), Text("Folder of the run, or its address; or, instead, --pretrained FOLDER.")
]


@dataclass(frozen=True, kw_only=True)
class Pretrained(Options):
    """A Hugging Face model that `evaluate` and `sample` take instead of a run."""

    group = "pretrained"

    pretrained: Annotated[str, Metavar("FOLDER")]
    """Of a Hugging Face model (config.json, .safetensors), or its id on the hub."""
    frozen_bits: Literal[32, 16, 8, 4] | None = None
    """Bits in which weights are kept: float32, bfloat16, int8, NF4. Left out: as in the files."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the matrix products."""


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(Options):
    run: RunOrPretrained
    step: Annotated[str, Metavar("STEP")] = "best"
    """Checkpoint: a step's number, `last`, or `best` (lowest validation loss; of a run of recommend, highest
    NDCG@10), else the last."""
    closed_loop: bool = False
    """Only for control: also let the model drive the systems, beside the optimal controllers. Takes minutes."""
    submission: Annotated[str | None, Metavar("FILE")] = None
    """Only for ARC: file (.json) for two attempts at every test input, in the competition's format. By default none is
    written."""
    raw: bool = False
    """Also evaluate the weights without averaging, for a run with --ema-decay."""
    keep_seen: bool = False
    """Only for recommend: also rank items that a user has already taken."""
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class EvaluatePretrained(Pretrained):
    text: Annotated[str, Metavar("FILE")]
    """A text, or anything that `plimsoll inspect` reads as one."""
    seq_len: Annotated[Count | None, Ge(1)] = None
    """Tokens of a window; each is read on its own. By default what the model was made for, at most 2,048."""
    batch_size: Annotated[Count, Ge(1)] = 8
    """Windows at a time."""
    max_examples: Annotated[Count | None, Ge(1)] = None
    """Most documents to read. By default all."""
    text_column: str = "text"
    """Column that holds the text in .jsonl, .parquet and Hugging Face data sets."""
    json: Json = False


def evaluate(arguments: Sequence[str]) -> int:
    """Prints the validation metrics of a checkpoint."""
    options = parse_either(EvaluateOptions, EvaluatePretrained, arguments, command="evaluate")
    if isinstance(options, EvaluatePretrained):
        return _evaluate_pretrained(options)
    run = fetched(options.run)
    text = class_of(RunFolder(run).read("recipe.json")).verbs.get("evaluate", Verb()).text
    answer = use.evaluate(**{**request_of(options), "run": run})
    return print_answer(options, answer, resolved(text) if text else evaluation_text)


OfRun = TypeVar("OfRun")
OfPretrained = TypeVar("OfPretrained", bound=Pretrained)


def parse_either(
    of_run: type[OfRun], of_pretrained: type[OfPretrained], arguments: Sequence[str], *, command: str
) -> OfRun | OfPretrained:
    """Returns the options of a command for a run, or for the pretrained model that is named instead."""
    names_pretrained = any(word.partition("=")[0] == "--pretrained" for word in arguments)
    options = of_pretrained if names_pretrained else of_run
    rows = {option.name: option for kind in (of_pretrained, of_run) for option in options_of(kind)}
    asks_for_help = {"-h", "--help"} & {*arguments}
    page = Page(
        program=f"plimsoll {command}",
        options=tuple(rows.values()) if asks_for_help else options_of(options),
        example=COMMANDS[command].example,
    )
    return options(**values_typed(page, arguments))


def _evaluate_pretrained(options: EvaluatePretrained) -> int:
    """Prints the loss that a Hugging Face model has on a text."""
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
