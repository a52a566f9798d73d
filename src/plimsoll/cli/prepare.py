"""`plimsoll prepare`: data sets that are made, not downloaded. What there is to make, recipes register."""

from __future__ import annotations

import dataclasses
from itertools import groupby

from plimsoll.cli.parse import Json, parse, print_answer, request_of
from plimsoll.errors import PlimsollError
from plimsoll.processes import environment
from plimsoll.processes.request import ask
from plimsoll.recipes.family import Preparation
from plimsoll.recipes.registry import broken_packages, preparations
from plimsoll.recipes.verbs import resolved

USAGE = """plimsoll prepare WHAT [options]

{sets}

Example: plimsoll prepare sudoku --size 4 --out data/sudoku-4x4

`plimsoll prepare WHAT --help` lists the options of each.
What was interrupted: the same command again."""


def prepare(arguments: list[str]) -> int:
    """Makes a data set; progress goes to standard error."""
    what, words = (arguments[0], arguments[1:]) if arguments and not arguments[0].startswith("-") else ("", arguments)
    known = preparations()
    if not what and words[:1] in (["-h"], ["--help"]):
        grouped = groupby(known, key=lambda name: known[name].purpose)
        print(USAGE.format(sets="\n".join(f"  {', '.join(names):<27}  {purpose}" for purpose, names in grouped)))
        return 0
    if what not in known:
        raise PlimsollError(
            f"plimsoll prepare needs to know what: {', '.join(known)}, got {what or 'nothing'}{broken_packages()}:"
            " `plimsoll prepare --help` says what each makes"
        )
    preparation = known[what]
    options = parse(options_of(preparation), words, program=f"plimsoll prepare {what}")
    values = request_of(options)
    if preparation.own_process:
        answer = ask("prepare", {"name": what, "options": values}, under=environment.for_making())
    else:
        answer = resolved(preparation.make)(resolved(preparation.options)(**values))
    return print_answer(options, answer, resolved(preparation.text))


def every_options() -> dict[str, type]:
    """Returns the options of each data set."""
    return {name: options_of(preparation) for name, preparation in preparations().items()}


def options_of(preparation: Preparation) -> type:
    """Returns the options of a data set, with --json."""
    options, fields = resolved(preparation.options), [("json", Json, False)]
    return dataclasses.make_dataclass(options.__name__, fields, bases=(options,), frozen=True, kw_only=True)
