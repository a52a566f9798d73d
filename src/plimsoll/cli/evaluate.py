"""`plimsoll evaluate`: the metrics of a run's checkpoint, or the loss of a Hugging Face model on a text."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from annotated_types import Ge

from plimsoll.cli.parse import Json, parse, print_answer, request_of
from plimsoll.cli.pretrained import Bits, Folder, Precision, RunOrPretrained, names_pretrained, parse_pretrained
from plimsoll.errors import PlimsollError
from plimsoll.processes.request import ask
from plimsoll.recipes.saved import class_of
from plimsoll.recipes.verbs import Verb, resolved
from plimsoll.report.summary import evaluation_text
from plimsoll.runs.folder import RunFolder, replace_file
from plimsoll.runs.remote import fetched
from plimsoll.units import format_bytes


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    run: RunOrPretrained
    step: str = "best"
    """Checkpoint: a step's number, `last`, or `best` (lowest validation loss; of a run of recommend, highest
    NDCG@10), else the last."""
    closed_loop: bool = False
    """Of a run of control: let it drive the systems, beside the optimal controllers."""
    picture: str | None = None
    """With --closed-loop: draw the journeys into this .png or .svg file; of a run of longcontext: the loss by
    position."""
    submission: str | None = None
    """Of a run of ARC: write two attempts at every test input into this .json file, as the competition takes them."""
    raw: bool = False
    """Of a run that keeps an average of its weights: the metrics of the weights as they were trained, too."""
    keep_seen: bool = False
    """Of a run of recommend: rank the items that a user has already taken, too."""
    json: Json = False


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


def evaluate(arguments: list[str]) -> int:
    """Prints the validation metrics of a checkpoint."""
    if names_pretrained(arguments):
        return _evaluate_pretrained(arguments)
    options = parse(EvaluateOptions, arguments, program="plimsoll evaluate")
    run = fetched(options.run)
    verb = class_of(RunFolder(run).read("recipe.json")).verbs.get("evaluate", Verb())
    if options.picture is not None:
        from plimsoll.report.picture import require_picture

        if not options.closed_loop and (not verb.picture or verb.picture_needs):
            raise PlimsollError(
                "--picture draws journeys, or the loss by position of a run of longcontext: give --closed-loop with it"
            )
        require_picture(options.picture)
    if options.submission is not None:  # refused now, and not at the end of an evaluation of hours
        file = Path(options.submission).expanduser()
        if file.is_dir() or not file.parent.is_dir() or not os.access(file.parent, os.W_OK):
            raise PlimsollError(
                f"--submission {options.submission} cannot be written: name a file in a folder that is there and yours"
            )
    request = {name: getattr(options, name) for name in ("step", "closed_loop", "raw", "keep_seen")}
    answer = ask("evaluate", request | {"run": run, "submission": options.submission is not None})
    submission = answer.pop("submission", None)
    if options.submission is not None:
        replace_file(Path(options.submission).expanduser(), json.dumps(submission) + "\n")
    if options.picture is not None:
        resolved(verb.picture)(answer, options.picture)
    return print_answer(options, answer, resolved(verb.text) if verb.text else evaluation_text)


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
