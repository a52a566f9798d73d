"""`plimsoll solve`: a puzzle, and what a run of puzzles makes of it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Annotated

import tyro

from plimsoll.cli.parse import Json, parse
from plimsoll.processes.request import ask
from plimsoll.runs.folder import RunFolder
from plimsoll.runs.remote import fetched


@dataclass(frozen=True, kw_only=True)
class SolveOptions:
    run: Annotated[
        tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN", help="Folder of the run, or its address in a bucket.")
    ]
    puzzle: Annotated[
        tyro.conf.Positional[str],
        tyro.conf.arg(
            metavar="PUZZLE",
            help="Puzzle to solve: its characters row after row (digits, and dots or zeros for blanks; a maze in"
            " '# SG'), a file with them, or test:17, an example of the run's test split, from 0.",
        ),
    ]
    step: str = "best"
    """Checkpoint: a step's number, `last`, or `best` (lowest validation loss, else the last)."""
    json: Json = False


def solve(arguments: list[str]) -> int:
    """Prints the puzzle beside the answer, the steps it took, and whether the answer keeps the rules."""
    options = parse(SolveOptions, arguments, program="plimsoll solve")
    options = dataclasses.replace(options, run=fetched(options.run))
    from plimsoll.recipes.puzzles.question import question
    from plimsoll.recipes.saved import from_dict

    recipe = from_dict(RunFolder(options.run).read("recipe.json"))
    asked = dataclasses.asdict(question(recipe, options.run, options.puzzle))  # what is no puzzle is said before JAX
    found = ask("solve", {"run": options.run, "step": options.step, **asked})
    if options.json:
        print(json.dumps(found))
    else:
        from plimsoll.recipes.puzzles.solution_text import solution_text

        print(solution_text(found))
    return 0
