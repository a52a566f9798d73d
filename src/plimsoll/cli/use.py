"""`plimsoll evaluate` and `plimsoll sample`: what was trained, put to use."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from plimsoll.cli import pretrained
from plimsoll.cli.parse import Json, parse, require_drawable
from plimsoll.errors import PlimsollError
from plimsoll.processes.request import ask
from plimsoll.recipes.longcontext.recipe import BY_POSITION
from plimsoll.runs.folder import RunFolder, replace_file
from plimsoll.runs.remote import fetched

Run = Annotated[
    tyro.conf.Positional[str],
    tyro.conf.arg(metavar="RUN", help="Folder of the run, or its address; or give --pretrained."),
]


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    run: Run
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
class SampleOptions:
    run: Run
    prompt: str = ""
    """What the text begins with; empty: the beginning of a document."""
    tokens: int = 200
    """Tokens at most; the model may end its document earlier."""
    temperature: float = 0.8
    """Divides the logits: 0 takes the likeliest token every time, 1 is the model's own distribution."""
    top_k: int = 40
    """Draw among so many likeliest tokens; 0 for all."""
    seed: int = 0
    """The same seed writes the same text."""
    step: str = "best"
    """Checkpoint: a step's number, `last`, or `best` (lowest validation loss, else the last)."""
    json: Json = False

    def __post_init__(self) -> None:
        require_drawable(tokens=self.tokens, temperature=self.temperature, top_k=self.top_k)


def evaluate(arguments: list[str]) -> int:
    """Prints the validation metrics of a checkpoint."""
    if pretrained.is_asked_for(arguments):
        return pretrained.evaluate(arguments)
    options = parse(EvaluateOptions, arguments, program="plimsoll evaluate")
    options = dataclasses.replace(options, run=fetched(options.run))
    recipe = RunFolder(options.run).read("recipe.json")  # what is no run is said before JAX starts
    if options.picture is not None:
        from plimsoll.report import require_picture

        if not options.closed_loop and recipe.get("kind") != "longcontext":
            raise PlimsollError(
                "--picture draws journeys, or the loss by position of a run of longcontext: give --closed-loop with it"
            )
        require_picture(options.picture)
    if options.submission is not None:
        _require_file(options.submission)
    question = {"run": options.run, "step": options.step, "closed_loop": options.closed_loop}
    question |= {"submission": options.submission is not None, "raw": options.raw, "keep_seen": options.keep_seen}
    found = ask("evaluate", question)
    submission = found.pop("submission", None)
    if options.submission is not None:
        replace_file(Path(options.submission).expanduser(), json.dumps(submission) + "\n")
    if options.picture is not None:
        _draw(found, options.picture)
    if options.json:
        print(json.dumps(found))
        return 0
    if "baselines" in found:
        from plimsoll.recipes.recommend.ranking_tables import recommendation_tables

        print(recommendation_tables(found))
        return 0
    driven, losses = found.pop("closed_loop", None), found.pop(BY_POSITION, None)
    print(evaluation_text(found))
    if losses is not None:
        from plimsoll.recipes.longcontext.tables import positions_table

        print(f"\n{positions_table(losses)}")
    if driven is not None:
        from plimsoll.recipes.control.tables import journeys_table

        print(f"\n{journeys_table(driven)}")
    return 0


def _draw(found: dict, path: str) -> None:
    if BY_POSITION in found:
        from plimsoll.recipes.longcontext.tables import positions_picture

        positions_picture(found[BY_POSITION], path)
        return
    from plimsoll.recipes.control.tables import journeys_picture

    journeys_picture(found["closed_loop"], path)


def _require_file(name: str) -> None:
    """Before hours of evaluating: what could not be written at the end."""
    path = Path(name).expanduser()
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise PlimsollError(f"--submission {name} cannot be written: name a file in a folder that is there and yours")


def evaluation_text(found: dict) -> str:
    note = found.pop("note", None)
    numbers = [name for name, value in found.items() if name not in ("run", "step") and not isinstance(value, dict)]
    width = max(map(len, numbers), default=0) + 2
    lines = [f"{found['run']} at step {found['step']:,}, on its held-out set", *([note] if note else [])]
    for name, value in found.items():
        if isinstance(value, dict):
            lines += ["", f"  {name}", *(f"    {part:<28}{number:8.4f}" for part, number in value.items())]
        elif name not in ("run", "step"):
            lines.append(f"  {name:<{width}}{f'{value:,}' if isinstance(value, int) else f'{value:.4f}'}")
    return "\n".join(lines)


def sample(arguments: list[str]) -> int:
    """Prints the prompt and what the model writes after it."""
    if pretrained.is_asked_for(arguments):
        return pretrained.sample(arguments)
    options = parse(SampleOptions, arguments, program="plimsoll sample")
    options = dataclasses.replace(options, run=fetched(options.run))
    RunFolder(options.run).read("recipe.json")
    question = dataclasses.asdict(options)
    as_json = question.pop("json")
    # A terminal that is not UTF-8 hands over half characters, which no tokenizer takes.
    question["prompt"] = os.fsencode(options.prompt).decode("utf-8", "replace")
    found = ask("sample", question)
    print(json.dumps(found) if as_json else question["prompt"] + found["text"])
    return 0
