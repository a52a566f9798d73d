"""`plimsoll train`: parse, prepare and plan here, then turn into the training process.

`plimsoll train RECIPE --run s3://...` is the same command in a folder here, watched, while its saves are sent. With
`--runs DIR`, several recipes one after the other (`cli/train_several.py`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile

from plimsoll.cli.options import TrainOptions
from plimsoll.cli.parse import parse_with_recipe, take_recipe
from plimsoll.errors import RecipeError
from plimsoll.recipes.own.files import short_name
from plimsoll.runs.store import is_address


def train(arguments: list[str], *, here: str | None = None) -> int:
    """Plans, then trains; the same command again continues. Does not return where one recipe's training starts.

    `here` is the folder of a run whose address was named.
    """
    names = list(takewhile(lambda word: not word.startswith("-"), arguments))
    shared = arguments[len(names) :]
    if len(names) < 2:
        name, options = parse_with_recipe(TrainOptions, arguments, command="train")
        if options.runs is None:
            return _become(name, options if here is None else replace(options, run=here), arguments)
        names, shared = [name], take_recipe(arguments, command="train")[2]  # in either form of the name
    from plimsoll.cli.train_several import train_several

    each = {}
    for name in names:  # all of them are read before the first one starts
        _, each[name] = parse_with_recipe(TrainOptions, [name, *shared], command="train")
    if any(options.runs is None for options in each.values()):
        raise RecipeError(
            f"plimsoll train {' '.join(names)} names {len(names)} recipes: give --runs FOLDER, in which each gets its"
            " own run, or train one of them"
        )
    return train_several(names, each, shared)


def _become(name: str, options: TrainOptions, arguments: list[str]) -> int:
    from plimsoll.api import cluster
    from plimsoll.api.plan import printing
    from plimsoll.api.train import prepare_run
    from plimsoll.processes.handover import become

    given, say = options.named(short_name(name)), printing(quiet=options.quiet)
    member = cluster.membership(options.coordinator, options.processes, options.process, chip=options.chip)
    if member is not None:
        return cluster.start(options.recipe, given, member)
    if is_address(options.run):
        return _train_in_bucket(arguments, str(options.run), say)
    become(prepare_run(options.recipe, given, say))


def _train_in_bucket(arguments: Sequence[str], address: str, say: Callable[[str], None]) -> int:
    """Returns the exit code of training; 3 where all was trained, and the bucket does not have it."""
    from plimsoll.processes.supervise import watched
    from plimsoll.runs.remote import BEHIND, mirrored, stop_training

    with mirrored(address, say, lost=stop_training) as mirror:
        command = [sys.executable, "-m", "plimsoll.cli.main", "train-watched", str(os.getpid()), str(mirror.run)]
        code, _ = watched([*command, *arguments])
    if mirror.behind is not None:
        print(f"error: {mirror.behind}", file=sys.stderr, flush=True)
        return code or BEHIND
    return code


def train_watched(arguments: list[str]) -> int:
    """Trains in a folder here for the process that sends what is saved, and ends when that process does.

    Args:
        arguments: Process id of the sender, the folder, and the arguments of `train`.
    """
    from plimsoll.processes.supervise import end_with

    parent, here, *of_train = arguments
    end_with(int(parent))
    return train(of_train, here=here)
