"""`plimsoll prepare`: makes data sets, or packs them for fast reading. Recipes register the kinds of data sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from plimsoll.cli.help import Page
from plimsoll.cli.main import COMMANDS
from plimsoll.cli.parse import Printed, print_answer, values_typed
from plimsoll.errors import RecipeError, did_you_mean, names_in_words
from plimsoll.options import options_of
from plimsoll.processes import environment
from plimsoll.processes.request import ask
from plimsoll.recipes.family import Preparation
from plimsoll.recipes.registered import broken_packages, preparations
from plimsoll.recipes.verbs import resolved

USAGE = """plimsoll prepare WHAT [options]

{sets}

Example: {example}

`plimsoll prepare WHAT --help` lists the options of each.
To continue after an interruption, type the same command again."""


def prepare(arguments: Sequence[str]) -> int:
    """Makes a data set, and prints a description. Returns the exit code."""
    known = preparations()
    what = arguments[0] if arguments else ""
    if what in ("-h", "--help"):
        sets = [f"  {name:<12} {preparation.purpose}" for name, preparation in known.items()]
        print(USAGE.format(sets="\n".join(sets), example=COMMANDS["prepare"].example))
        return 0
    if what not in known:
        hint = did_you_mean(what, known) or f": {names_in_words(known)}"
        raise RecipeError(
            f"plimsoll prepare needs the name of a data set first, got {what!r}{hint}{broken_packages()};"
            " `plimsoll prepare --help` says what each is"
        )
    preparation = known[what]
    values = values_typed(page_of(what, preparation), arguments[1:])
    printed = Printed(json=values.pop("json", False))
    options = resolved(preparation.options)(**values)
    if preparation.own_process:
        answer = ask("prepare", {"name": what, "options": asdict(options)}, under=environment.for_making())
    else:
        answer = resolved(preparation.make)(options)
    return print_answer(printed, answer, resolved(preparation.text))


def page_of(what: str, preparation: Preparation) -> Page:
    """Returns the help for a kind of data set: its options, and --json."""
    return Page(
        program=f"plimsoll prepare {what}",
        options=(*options_of(resolved(preparation.options)), *options_of(Printed)),
        example=preparation.example,
    )
