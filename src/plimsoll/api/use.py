"""Commands that use a trained run, like `evaluate`, and their options: for `Run`, command line and worker processes.

The run's files tell if its recipe supports a command, so that errors are raised before JAX starts. A separate process
computes the answer, so nothing here imports JAX. Each recipe defines its answers (`recipes/verbs.py`).
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from plimsoll.errors import RecipeError
from plimsoll.files.bucket import fetched
from plimsoll.files.manifest import replace_file
from plimsoll.files.run_folder import RunFolder
from plimsoll.options import (
    Argument,
    Metavar,
    NonNegativeFloat,
    NonNegativeInt,
    Options,
    PositiveCount,
    PositiveInt,
)
from plimsoll.processes.request import ask
from plimsoll.recipes.parts import Prepared
from plimsoll.recipes.recipe import with_spec
from plimsoll.recipes.saved import from_dict, name_in, uses_of
from plimsoll.recipes.verbs import Verb, resolved

Place = str | os.PathLike[str] | None


@dataclass(frozen=True, kw_only=True)
class UseOptions(Options):
    """Options of a command that uses a run: for the command line, for `Run`, and in requests to the worker process."""

    typed: ClassVar[str] = ""
    """Name of the option whose text the recipe parses before JAX starts, like `puzzle`; empty for none."""
    lacking: ClassVar[str] = ""
    """End of the error message for a run whose recipe does not support the command."""

    step: Annotated[str, Metavar("STEP")] = "best"
    """Checkpoint: a step's number, `last`, or `best` (lowest validation loss; for recommend, highest NDCG@10; the last
    if the run was never evaluated)."""


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(UseOptions):
    closed_loop: bool = False
    """Also let the model control simulated systems, and compare it with optimal controllers; only for control. Takes
    minutes."""
    submission: Annotated[str | None, Metavar("FILE")] = None
    """File for two attempts at every test input, in the competition's format (.json); only for ARC. By default none is
    written."""
    raw: bool = False
    """Also evaluate the weights without averaging, for a run with --ema-decay."""
    keep_seen: bool = False
    """Also rank items that a user has taken; only for recommend."""

    def check_options(self) -> None:
        """Raises RecipeError if the submission cannot be written, before an evaluation that may take hours."""
        if self.submission is None:
            return
        file = Path(self.submission).expanduser()
        if file.is_dir() or not file.parent.is_dir() or not os.access(file.parent, os.W_OK):
            raise RecipeError(
                f"--submission {self.submission} cannot be written: name a file in an existing folder of yours"
            )


@dataclass(frozen=True, kw_only=True)
class Writing(Options):
    """Options for generating text, with a run's model or a pretrained one."""

    prompt: Annotated[str, Metavar("TEXT")] = ""
    """Text to continue. By default the model begins a new document."""
    tokens: PositiveCount = 200
    """Largest number of tokens to write; the model may end its document earlier."""
    temperature: NonNegativeFloat = 0.8
    """Divisor of the logits: 0 always takes the likeliest token, 1 samples from the model's own distribution."""
    top_k: NonNegativeInt = 40
    """Number of likeliest tokens to sample from; 0 for all."""
    seed: int = 0
    """Seed of the sampling: the same seed writes the same text."""


@dataclass(frozen=True, kw_only=True)
class SampleOptions(UseOptions, Writing):
    """Options for generating text with a run's model."""

    lacking = "which writes no text"


@dataclass(frozen=True, kw_only=True)
class SolveOptions(UseOptions):
    typed = "puzzle"
    lacking = "which solves no puzzles: name a run of sudoku, maze or arc"

    puzzle: Annotated[str, Argument("PUZZLE")]
    """Puzzle to solve: its characters row after row (digits, and dots or zeros for blanks; a maze in '# SG'), a file
    with them, or test:17 for example 17 of the run's test split, from 0."""


@dataclass(frozen=True, kw_only=True)
class RankOptions(UseOptions):
    typed = "history"
    lacking = "which ranks no items: name a run of recommend (`plimsoll runs` lists those here)"

    history: Annotated[str, Metavar("ITEMS")]
    """Items that the user has taken, oldest first, separated by commas, by their ids in the original data."""
    top: PositiveInt = 10
    """Number of items to show."""
    keep_seen: bool = False
    """Also rank the items of the history."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions(UseOptions):
    lacking = (
        "whose model transformers does not know: only language models are exported, as stories, code and finetune"
        " train them"
    )

    adapter: Annotated[str | None, Metavar("FOLDER")] = None
    """New folder for the adapters, which `peft` loads. Only for finetune."""
    merged: Annotated[str | None, Metavar("FOLDER")] = None
    """New folder for the complete model, which `transformers` loads. By default it is not written."""

    def check_options(self) -> None:
        """Raises RecipeError if no folder is named, or if a path ends like a file's name."""
        places = [place for place in (self.adapter, self.merged) if place]
        if not places:
            raise RecipeError(
                "export writes nothing without a place: name --merged FOLDER for transformers, or --adapter FOLDER for"
                " peft (only for runs of finetune)"
            )
        for place in places:
            if Path(place).suffix[1:].isalpha():
                raise RecipeError(
                    f"{place} names a file, and a model is exported into a folder, as transformers (--merged FOLDER) or"
                    " peft (--adapter FOLDER) load it: other programs convert the folder"
                )


USES: dict[str, type[UseOptions]] = {
    "evaluate": EvaluateOptions,
    "sample": SampleOptions,
    "solve": SolveOptions,
    "rank": RankOptions,
    "export": ExportOptions,
}
"""Map from a command that uses a trained run to the class of its options."""


def use(name: str, run: str, options: UseOptions) -> dict[str, Any]:
    """Runs a command like `evaluate` on a trained run, and returns the answer.

    Args:
        name: Key of `USES`.
        run: Folder of the run, or its address in a bucket.
        options: Options of the command.

    Returns:
        A dict with `run`, `step`, and further entries that depend on the recipe.

    Raises:
        PlimsollError: The run has no checkpoint or no held-out set, its data has changed, an export's folder exists,
            or its recipe does not support the command or an option.
    """
    here = fetched(run)
    folder = RunFolder(here)
    verb = verb_of(name, here)
    request = {**asdict(options), "run": here}
    folder.require_saved()
    if options.typed:
        recipe = with_spec(from_dict(folder.read("recipe.json")), Prepared.read(folder).spec)
        request |= resolved(verb.ask)(recipe, here, request[options.typed])
    answer = ask(name, request)

    # Write the attempts at ARC tasks into the file of --submission.
    attempts = answer.pop("submission", None)
    if isinstance(options, EvaluateOptions) and options.submission is not None:
        replace_file(Path(options.submission).expanduser(), json.dumps(attempts) + "\n")
    return answer


def fingerprint(run: str) -> dict[str, Any]:
    """Returns a SHA-256 hash of the newest intact checkpoint of a run.

    Args:
        run: Folder of the run, or its address in a bucket.

    Returns:
        A dict with `run`, `step`, `fingerprint`, and `notes` about newer, damaged checkpoints.

    Raises:
        CheckpointError: There is no intact checkpoint.
    """
    here = fetched(run)
    folder = RunFolder(here)
    folder.read("recipe.json")  # raises for a folder that is no run, before JAX is imported
    folder.require_saved()
    return ask("fingerprint", {"run": here})


def verb_of(name: str, run: str) -> Verb:
    """Returns the functions of a run's recipe for a command. Without any, `evaluate` averages over the validation set.

    Raises:
        RecipeError: The recipe does not support the command.
    """
    folder = RunFolder(run)
    saved = folder.read("recipe.json")
    verb = uses_of(saved).verbs.get(name)
    if verb is None and name != "evaluate":
        raise RecipeError(f"{folder.path} is a run of {name_in(saved)}, {USES[name].lacking}")
    return verb or Verb()
