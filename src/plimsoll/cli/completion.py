"""`plimsoll --tyro-print-completion bash`: tab completion of all commands, recipes and options, by tyro.

Every command parses for itself, so that none waits for another; here they are put together into one parser, once.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Annotated, Any

import tyro
from tyro import MISSING

from plimsoll.cli import ladder, options, prepare
from plimsoll.cli.main import COMMANDS
from plimsoll.errors import RecipeError
from plimsoll.recipes.registry import preset, presets

FLAG = "--tyro-print-completion"
SHELLS = ("bash", "zsh")
"""Which tyro writes by itself; for tcsh it would need another library."""

BY_RECIPE = {"plan": options.PlanOptions, "train": options.TrainOptions, "ladder": ladder.LadderOptions}
OTHERS = {
    name: getattr(importlib.import_module(module), f"{name.capitalize()}Options")
    for name, (module, _) in COMMANDS.items()
    if name not in BY_RECIPE and name != "prepare"
}
"""Options of the other commands: of `plimsoll runs`, the class `RunsOptions` in the module of `runs`."""


def completion(arguments: list[str]) -> int:
    """Prints the script of a shell, whose name is the one argument."""
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        got = " ".join(arguments) or "nothing"
        raise RecipeError(f"{FLAG} takes a shell, one of {', '.join(SHELLS)}, got {got}")
    recipes = {}
    for name in presets():
        with contextlib.suppress(RecipeError):  # of a broken package, which `plimsoll recipes` names
            recipes[name] = preset(name)
    by_recipe = {
        command: _either({name: (kind, kind(recipe=recipe)) for name, recipe in recipes.items()})
        for command, kind in BY_RECIPE.items()
    }
    prepared = {"prepare": _either({name: (kind, MISSING) for name, kind in prepare.every_options().items()})}
    every = {name: (kind, MISSING) for name, kind in (by_recipe | prepared | OTHERS).items()}
    script = io.StringIO()
    with contextlib.redirect_stdout(script), contextlib.suppress(SystemExit):
        tyro.cli(tyro.conf.OmitArgPrefixes[_either(every)], prog="plimsoll", args=[FLAG, *arguments])
    # A help text of two lines would be offered as two completions (tyro 1.0.17): line breaks inside the texts go.
    for line in script.getvalue().splitlines():
        print(line.replace("\\n", " ") if line.startswith("COMPLETION_SPEC = ") else line)
    return 0


def _either(commands: Mapping[str, tuple[Any, Any]]) -> Any:
    """Returns a type that is one of these, chosen by its name."""
    kinds = [Annotated[kind, tyro.conf.subcommand(name, default=default)] for name, (kind, default) in commands.items()]
    return reduce(or_, kinds)
