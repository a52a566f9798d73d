"""Commands that ask a run's recipe for one of its verbs: `plimsoll export`, `solve` and `rank`.

Each reads recipe.json first, so that a run whose recipe has no such verb is refused before JAX starts. What is
answered, printed and drawn is the recipe's own (`recipes/verbs.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from annotated_types import Ge

from plimsoll.api.export import GgufType
from plimsoll.api.export import export as write_export
from plimsoll.cli.parse import Json, Run, parse, print_answer, request_of
from plimsoll.processes.request import ask
from plimsoll.recipes.saved import class_of, from_dict, name_in
from plimsoll.recipes.verbs import Verb, lacking, resolved
from plimsoll.runs.folder import RunFolder
from plimsoll.runs.remote import fetched
from plimsoll.units import format_bytes

BestByLoss = Annotated[
    str,
    tyro.conf.arg(help="Checkpoint: a step's number, `last`, or `best` (lowest validation loss, else the last)."),
]


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    run: Run
    adapter: Annotated[
        str | None, tyro.conf.arg(metavar="FOLDER", help="The adapters of finetune, as `peft` loads them.")
    ] = None
    merged: Annotated[
        str | None, tyro.conf.arg(metavar="FOLDER", help="The whole model, adapters in it, as `transformers` loads it.")
    ] = None
    gguf: Annotated[
        str | None, tyro.conf.arg(metavar="FILE", help="The whole model in one file, as llama.cpp and Ollama run it.")
    ] = None
    gguf_type: GgufType | None = None
    """Type of the kernels in that file; default: as --merged has them."""
    out: Annotated[
        str | None, tyro.conf.arg(metavar="FOLDER", help="What --merged was called before, for stories and code.")
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
class RankOptions:
    run: Run
    history: str
    """Items that were taken, oldest first, separated by commas, as the file that was prepared calls them."""
    top: Annotated[int, Ge(1)] = 10
    """Items to name."""
    keep_seen: bool = False
    """Rank the history's own items, too."""
    step: str = "best"
    """Checkpoint: a step's number, `last`, or `best` (highest NDCG@10 in validation, else the last)."""
    json: Json = False


LOADS = {
    "adapter": "`peft` loads it beside its model, and `plimsoll train finetune --init-from` goes on from it",
    "merged": "`transformers` loads it, and so does `plimsoll sample --pretrained`",
    "gguf": "llama.cpp runs it, and Ollama by a Modelfile with `FROM` and its path",
}
"""Form of an export to what it is for."""


def export(arguments: list[str]) -> int:
    """Prints where the forms of a model are that were written, and what loads them."""
    options = parse(ExportOptions, arguments, program="plimsoll export")
    return print_answer(options, write_export(**request_of(options)), _exported)


def _exported(answer: Mapping[str, Any]) -> str:
    forms = {form: answer[form] for form in LOADS if form in answer} | ({"merged": answer} if "out" in answer else {})
    return "\n".join(
        f"{facts['out']}: {facts['parameters']:,} parameters of step {answer['step']:,}"
        f" ({format_bytes(facts['bytes'])}). {LOADS[form]}"
        for form, facts in forms.items()
    )


def solve(arguments: list[str]) -> int:
    """Prints the puzzle beside the answer, the steps it took, and whether the answer keeps the rules."""
    options = parse(SolveOptions, arguments, program="plimsoll solve")
    return _answer_typed("solve", options, options.puzzle)


def rank(arguments: list[str]) -> int:
    """Prints the likeliest items, their titles and how likely each one is."""
    options = parse(RankOptions, arguments, program="plimsoll rank")
    return _answer_typed("rank", options, options.history)


def _answer_typed(name: str, options: SolveOptions | RankOptions, typed: str) -> int:
    """Prints the answer to what was typed (a puzzle, a history), which the recipe reads before JAX starts."""
    run = fetched(options.run)
    verb = verb_of(name, run)
    recipe = from_dict(RunFolder(run).read("recipe.json"))
    request = request_of(options) | {"run": run} | resolved(verb.ask)(recipe, run, typed)
    return print_answer(options, ask(name, request), resolved(verb.text))


def verb_of(name: str, run: str) -> Verb:
    """Returns the verb of the run's recipe, or refuses a run of another recipe before JAX starts."""
    folder = RunFolder(run)
    saved = folder.read("recipe.json")
    verbs: Mapping[str, Verb] = class_of(saved).verbs
    if name not in verbs:
        raise lacking(name, folder.path, name_in(saved))
    return verbs[name]
