"""`plimsoll evaluate`: the metrics of a run's checkpoint, or the loss of a Hugging Face model on a text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated

import tyro
from annotated_types import Ge

from plimsoll.api import use
from plimsoll.cli.parse import Json, parse, print_answer, request_of
from plimsoll.cli.pretrained import Bits, Folder, Precision, RunOrPretrained, names_pretrained, parse_pretrained
from plimsoll.files.bucket import fetched
from plimsoll.files.run_folder import RunFolder
from plimsoll.processes.request import ask
from plimsoll.recipes.saved import class_of
from plimsoll.recipes.verbs import Verb, resolved
from plimsoll.report.summary import evaluation_text
from plimsoll.units import format_bytes


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    run: RunOrPretrained
    step: str = "best"
    """Checkpoint: a step's number, `last`, or `best` (lowest validation loss; of a run of recommend, highest
    NDCG@10), else the last."""
    closed_loop: bool = False
    """Only for control: also let the model drive the systems, beside the optimal controllers. Takes minutes."""
    submission: str | None = None
    """Only for ARC: file (.json) for two attempts at every test input, in the competition's format. By default none is
    written."""
    raw: bool = False
    """Also evaluate the weights without averaging, for a run with --ema-decay."""
    keep_seen: bool = False
    """Only for recommend: also rank items that a user has already taken."""
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class EvaluatePretrained:
    pretrained: Folder
    text: Annotated[
        str, tyro.conf.arg(metavar="FILE", help="A text, or anything that `plimsoll inspect` reads as one.")
    ]
    seq_len: Annotated[int | None, "count", Ge(1)] = None
    """Tokens of a window; each is read on its own. By default what the model was made for, at most 2,048."""
    batch_size: Annotated[int, "count", Ge(1)] = 8
    """Windows at a time."""
    max_examples: Annotated[int | None, "count"] = None
    """Most documents to read. By default all."""
    text_column: str = "text"
    """Column that holds the text in .jsonl, .parquet and Hugging Face data sets."""
    frozen_bits: Bits = None
    precision: Precision = "float32"
    json: Json = False


def evaluate(arguments: list[str]) -> int:
    """Prints the validation metrics of a checkpoint."""
    if names_pretrained(arguments):
        return _evaluate_pretrained(arguments)
    options = parse(EvaluateOptions, arguments, program="plimsoll evaluate")
    run = fetched(options.run)
    text = class_of(RunFolder(run).read("recipe.json")).verbs.get("evaluate", Verb()).text
    answer = use.evaluate(**{**request_of(options), "run": run})
    return print_answer(options, answer, resolved(text) if text else evaluation_text)


def _evaluate_pretrained(arguments: list[str]) -> int:
    """Prints the loss that a Hugging Face model has on a text."""
    options = parse_pretrained(EvaluatePretrained, arguments, "evaluate")
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
