"""Commands that ask a run's recipe for one of its verbs: `plimsoll export`, `solve` and `rank`.

What they do is `api/use.py` and `api/export.py`. What is answered, printed and drawn is the recipe's own
(`recipes/verbs.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from plimsoll.api import use
from plimsoll.api.export import export as write_export
from plimsoll.cli.parse import Json, Run, parse, print_answer, request_of
from plimsoll.files.bucket import fetched
from plimsoll.recipes.verbs import resolved
from plimsoll.units import format_bytes

BestByLoss = Annotated[
    str,
    tyro.conf.arg(help="Checkpoint: a step's number, `last`, or `best` (lowest validation loss, else the last)."),
]


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    run: Run
    adapter: Annotated[
        str | None,
        tyro.conf.arg(metavar="FOLDER", help="New folder for the adapters, which `peft` loads. Only for finetune."),
    ] = None
    merged: Annotated[
        str | None,
        tyro.conf.arg(
            metavar="FOLDER",
            help="New folder for the whole model, which `transformers` loads. By default it is not written.",
        ),
    ] = None
    step: BestByLoss = "best"
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class SolveOptions:
    run: Run
    puzzle: Annotated[
        tyro.conf.Positional[str],
        tyro.conf.arg(
            metavar="PUZZLE",
            help="Puzzle to solve: its characters row after row (digits, and dots or zeros for blanks; a maze in"
            " '# SG'), a file with them, or test:17, an example of the run's test split, from 0.",
        ),
    ]
    step: BestByLoss = "best"
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class RankOptions(use.Ranking):
    run: Run
    history: str
    """Items the user has taken, oldest first, separated by commas, by their names in the prepared file."""
    step: str = "best"
    """Checkpoint: a step's number, `last`, or `best` (highest NDCG@10 in validation, else the last)."""
    json: Json = False


LOADS = {
    "adapter": "`peft` loads it beside its model, and `plimsoll train finetune --init-from` goes on from it",
    "merged": "`transformers` loads it, and so does `plimsoll sample --pretrained`",
}
"""Form of an export to what it is for."""


def export(arguments: list[str]) -> int:
    """Prints where the forms of a model are that were written, and what loads them."""
    options = parse(ExportOptions, arguments, program="plimsoll export")
    return print_answer(options, write_export(**request_of(options)), _exported)


def _exported(answer: Mapping[str, Any]) -> str:
    lines = []
    for form, use_of_it in LOADS.items():
        if form not in answer:
            continue
        facts = answer[form]
        size = f"{facts['parameters']:,} parameters of step {answer['step']:,} ({format_bytes(facts['bytes'])})"
        lines.append(f"{facts['out']}: {size}. {use_of_it}")
    return "\n".join(lines)


def solve(arguments: list[str]) -> int:
    """Prints the puzzle beside the answer, the steps it took, and whether the answer keeps the rules."""
    options = parse(SolveOptions, arguments, program="plimsoll solve")
    run = fetched(options.run)
    answer = use.solve(run, options.puzzle, step=options.step)
    return print_answer(options, answer, resolved(use.verb_of("solve", run).text))


def rank(arguments: list[str]) -> int:
    """Prints the likeliest items and how likely each one is."""
    options = parse(RankOptions, arguments, program="plimsoll rank")
    run, ranking = fetched(options.run), use.Ranking(top=options.top, keep_seen=options.keep_seen)
    answer = use.rank(run, options.history, ranking, step=options.step)
    return print_answer(options, answer, resolved(use.verb_of("rank", run).text))
