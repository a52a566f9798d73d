"""Commands that ask a run's recipe for one of its verbs: `plimsoll export`, `solve` and `rank`.

What they do is `api/use.py` and `api/export.py`. What is answered, printed and drawn is the recipe's own
(`recipes/verbs.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from plimsoll.api import use
from plimsoll.api.export import export as write_export
from plimsoll.cli.parse import Run, Step, parse, print_answer, request_of
from plimsoll.files.bucket import fetched
from plimsoll.options import Argument, Json, Metavar, Options
from plimsoll.recipes.verbs import resolved
from plimsoll.units import format_bytes


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Options):
    run: Run
    adapter: Annotated[str | None, Metavar("FOLDER")] = None
    """New folder for the adapters, which `peft` loads. Only for finetune."""
    merged: Annotated[str | None, Metavar("FOLDER")] = None
    """New folder for the whole model, which `transformers` loads. By default it is not written."""
    step: Step = "best"
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class SolveOptions(Options):
    run: Run
    puzzle: Annotated[str, Argument("PUZZLE")]
    """Puzzle to solve: its characters row after row (digits, and dots or zeros for blanks; a maze in '# SG'), a file
    with them, or test:17, an example of the run's test split, from 0."""
    step: Step = "best"
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class RankOptions(use.Ranking):
    run: Run
    history: Annotated[str, Metavar("ITEMS")]
    """Items the user has taken, oldest first, separated by commas, by their names in the prepared file."""
    step: Annotated[str, Metavar("STEP")] = "best"
    """Checkpoint: a step's number, `last`, or `best` (highest NDCG@10 in validation, else the last)."""
    json: Json = False


LOADS = {
    "adapter": "`peft` loads it beside its model, and `plimsoll train finetune --init-from` goes on from it",
    "merged": "`transformers` loads it, and so does `plimsoll sample --pretrained`",
}
"""Form of an export to what it is for."""


def export(arguments: list[str]) -> int:
    """Prints where the forms of a model are that were written, and what loads them."""
    options = parse(ExportOptions, arguments, command="export")
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
    options = parse(SolveOptions, arguments, command="solve")
    run = fetched(options.run)
    answer = use.solve(run, options.puzzle, step=options.step)
    return print_answer(options, answer, resolved(use.verb_of("solve", run).text))


def rank(arguments: list[str]) -> int:
    """Prints the likeliest items and how likely each one is."""
    options = parse(RankOptions, arguments, command="rank")
    run, ranking = fetched(options.run), use.Ranking(top=options.top, keep_seen=options.keep_seen)
    answer = use.rank(run, options.history, ranking, step=options.step)
    return print_answer(options, answer, resolved(use.verb_of("rank", run).text))
