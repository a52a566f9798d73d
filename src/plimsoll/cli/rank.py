"""`plimsoll rank`: a history of items, and what a run of recommend puts after it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Annotated

import tyro

from plimsoll.cli.parse import Json, parse
from plimsoll.errors import PlimsollError
from plimsoll.processes.request import ask
from plimsoll.runs.folder import RunFolder
from plimsoll.runs.remote import fetched


@dataclass(frozen=True, kw_only=True)
class RankOptions:
    run: Annotated[
        tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN", help="Folder of the run, or its address in a bucket.")
    ]
    history: str
    """Items that were taken, oldest first, separated by commas, as the file that was prepared calls them."""
    top: int = 10
    """Items to name."""
    keep_seen: bool = False
    """Rank the history's own items, too."""
    step: str = "best"
    """Checkpoint: a step's number, `last`, or `best` (highest NDCG@10 in validation, else the last)."""
    json: Json = False

    def __post_init__(self) -> None:
        if self.top < 1:
            raise PlimsollError(f"--top must be 1 or more, got {self.top}")


def rank(arguments: list[str]) -> int:
    """Prints the likeliest items, their titles and how likely each one is."""
    options = parse(RankOptions, arguments, program="plimsoll rank")
    options = replace(options, run=fetched(options.run))
    from plimsoll.recipes.recommend.history import history_of
    from plimsoll.recipes.saved import from_dict

    recipe = from_dict(RunFolder(options.run).read("recipe.json"))
    history = history_of(recipe, options.run, options.history)  # what is no item is said before JAX starts
    asked = {"run": options.run, "step": options.step, "history": history}
    found = ask("rank", asked | {"top": options.top, "keep_seen": options.keep_seen})
    if options.json:
        print(json.dumps(found))
    else:
        from plimsoll.recipes.recommend.ranking_tables import ranking_text

        print(ranking_text(found))
    return 0
