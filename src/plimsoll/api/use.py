"""Use of a trained run: what `plimsoll evaluate`, `sample`, `solve`, `rank` and `fingerprint` do, as functions.

What a run cannot do is refused from its files, before JAX starts. The answer is computed in a process of its own, so
that nothing here imports JAX. What is answered is the recipe's own (`recipes/verbs.py`).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Interval

from plimsoll.errors import PlimsollError
from plimsoll.files.bucket import fetched
from plimsoll.files.manifest import replace_file
from plimsoll.files.run_folder import RunFolder
from plimsoll.options import Count, Metavar, Options
from plimsoll.processes.request import ask
from plimsoll.recipes.saved import class_of, from_dict, name_in
from plimsoll.recipes.verbs import Verb, lacking, resolved

Place = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class Writing(Options):
    """Options of a text that a model writes, whether it is a run's or a pretrained one."""

    prompt: Annotated[str, Metavar("TEXT")] = ""
    """Text to continue. By default the model begins a new document."""
    tokens: Annotated[Count, Ge(1)] = 200
    """Most tokens to write; the model may end its document earlier."""
    temperature: Annotated[float, Interval(ge=0, lt=math.inf)] = 0.8
    """Divisor of the logits: 0 always takes the likeliest token, 1 samples from the model's own distribution."""
    top_k: Annotated[int, Ge(0)] = 40
    """Number of likeliest tokens to sample from; 0 for all."""
    seed: int = 0
    """Seed of the sampling: the same seed writes the same text."""


@dataclass(frozen=True, kw_only=True)
class Ranking(Options):
    """Options of a ranking of items, besides the history."""

    top: Annotated[int, Ge(1)] = 10
    """Number of items to show."""
    keep_seen: bool = False
    """Also rank the items of the history."""


def evaluate(
    run: str,
    *,
    step: str = "best",
    closed_loop: bool = False,
    submission: Place | None = None,
    raw: bool = False,
    keep_seen: bool = False,
) -> dict[str, Any]:
    """Returns the metrics of a checkpoint on the run's held-out set.

    Args:
        run: Folder of the run, or its address in a bucket.
        step: Number of a checkpoint, `last`, or `best`.
        closed_loop: Of a run of control: lets it drive the systems, which takes minutes.
        submission: Of a run of ARC: a .json file for two attempts at every test input.
        raw: Of a run that keeps an average of its weights: adds the metrics of the weights as they were trained.
        keep_seen: Of a run of recommend: ranks the items that a user has already taken, too.

    Returns:
        `run`, `step`, and means by name: `loss`, and what the recipe adds.

    Raises:
        PlimsollError: The run has no checkpoint or no held-out set, its data has changed, or its recipe does not
            support an option.
    """
    here = fetched(run)
    RunFolder(here).read("recipe.json")  # refuses what is no run
    file = None if submission is None else Path(submission).expanduser()
    if file is not None and (file.is_dir() or not file.parent.is_dir() or not os.access(file.parent, os.W_OK)):
        raise PlimsollError(  # refused now, and not at the end of an evaluation of hours
            f"--submission {submission} cannot be written: name a file in a folder that is there and yours"
        )
    RunFolder(here).require_saved()
    request = {"step": step, "closed_loop": closed_loop, "raw": raw, "keep_seen": keep_seen}
    answer = ask("evaluate", request | {"run": here, "submission": file is not None})
    attempts = answer.pop("submission", None)
    if file is not None:
        replace_file(file, json.dumps(attempts) + "\n")
    return answer


def sample(run: str, writing: Writing, *, step: str = "best") -> dict[str, Any]:
    """Returns what a run's model writes after a prompt.

    Args:
        run: Folder of the run, or its address in a bucket.
        writing: The prompt, how many tokens, and how they are drawn.
        step: Number of a checkpoint, `last`, or `best`.

    Returns:
        The request, with `text` (without the prompt), `tokens`, and `ended`: whether the model ended its document.

    Raises:
        PlimsollError: The run writes no text, or has no checkpoint.
    """
    here = fetched(run)
    verb_of("sample", here)
    RunFolder(here).require_saved()
    request = {field.name: getattr(writing, field.name) for field in fields(Writing)}
    return ask("sample", request | {"run": here, "step": step})


def solve(run: str, puzzle: str, *, step: str = "best") -> dict[str, Any]:
    """Returns a puzzle's answer by what a run of puzzles has learned.

    Args:
        run: Folder of the run, or its address in a bucket.
        puzzle: Characters of the puzzle row after row, a file with them, or `test:17`, an example of the run's test
            split, from 0.
        step: Number of a checkpoint, `last`, or `best`.

    Raises:
        PlimsollError: The puzzle cannot be read, or the run solves none.
    """
    here = fetched(run)
    return _answer_typed("solve", here, puzzle, {"run": here, "puzzle": puzzle, "step": step})


def rank(
    run: str, history: str | Sequence[str | int], ranking: Ranking | None = None, *, step: str = "best"
) -> dict[str, Any]:
    """Returns the items that come next by what a run of recommend has learned.

    Args:
        run: Folder of the run, or its address in a bucket.
        history: Items that were taken, oldest first, as the file that was prepared calls them: a list, or a text in
            which commas separate them.
        ranking: How many items, and which.
        step: Number of a checkpoint, `last`, or `best`.

    Raises:
        PlimsollError: An item is not known, or the run ranks none.
    """
    ranking = ranking or Ranking()
    here, typed = fetched(run), history if isinstance(history, str) else ",".join(map(str, history))
    return _answer_typed("rank", here, typed, {"run": here, "history": typed, **asdict(ranking), "step": step})


def fingerprint(run: str) -> dict[str, Any]:
    """Returns one SHA-256 over everything that a run has learned.

    Args:
        run: Folder of the run, or its address in a bucket.

    Returns:
        `run`, `step`, `fingerprint`, and `notes` about newer checkpoints that are damaged.

    Raises:
        CheckpointError: No checkpoint is whole.
    """
    here = fetched(run)
    RunFolder(here).read("recipe.json")  # what is no run is said before JAX starts
    RunFolder(here).require_saved()
    return ask("fingerprint", {"run": here})


def verb_of(name: str, run: str) -> Verb:
    """Returns the verb of the run's recipe.

    Raises:
        RecipeError: The recipe has none of that name.
    """
    folder = RunFolder(run)
    saved = folder.read("recipe.json")
    verbs: Mapping[str, Verb] = class_of(saved).verbs
    if name not in verbs:
        raise lacking(name, folder.path, name_in(saved))
    return verbs[name]


def _answer_typed(name: str, run: str, typed: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the answer to what was typed (a puzzle, a history), which the recipe reads before JAX starts."""
    verb = verb_of(name, run)
    recipe = from_dict(RunFolder(run).read("recipe.json"))
    request = {**request, **resolved(verb.ask)(recipe, run, typed)}
    RunFolder(run).require_saved()
    return ask(name, request)
