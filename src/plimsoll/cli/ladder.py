"""`plimsoll ladder`: parse, climb, print."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from plimsoll.cli.parse import Json, parse_with_recipe, say
from plimsoll.errors import RecipeError
from plimsoll.recipes.base import Recipe
from plimsoll.recipes.own.files import short_name


@dataclass(frozen=True, kw_only=True)
class LadderOptions:
    recipe: Recipe
    memory: str | None = None
    """Budget, like 2GiB: rungs that are predicted to need more are not run. By default the memory that is free now,
    less a safety margin."""
    chip: str | None = None
    """Chip to compile the rungs for, one of `plimsoll chips`; nothing is trained and no data is read. By default rungs
    are trained here."""
    numerics: Literal["exact", "mixed", "compressed"] = "compressed"
    """Freedom of rungs to change the arithmetic; compressed includes exact and mixed."""
    rungs: tuple[str, ...] = ()
    """Names of the rungs to climb; the first one is always among them. By default every rung of the recipe."""
    rung_steps: int = 12
    """Optimizer steps on each rung, a third of them after a restart from a checkpoint. --steps stays the length of the
    schedule."""
    run: str | None = None
    """New folder in which the runs are kept. By default they are deleted afterwards."""
    json: Json = False


def ladder(arguments: list[str]) -> int:
    """Trains a few steps on each rung and prints the measured table. 3 if a rung failed, 2 if none could be run.

    With --chip, compiles the rungs and prints the predicted one.
    """
    name, options = parse_with_recipe(LadderOptions, arguments, command="ladder")
    if options.chip is not None:
        return _predicted(name, options)
    from plimsoll.api.ladder import climb
    from plimsoll.report.ladder import ladder_table

    def stop(_number: int, _frame: Any) -> NoReturn:
        raise SystemExit(143)  # as at Ctrl-C: on the way out, every process and folder of the ladder goes too

    signal.signal(signal.SIGTERM, stop)
    result = climb(
        options.recipe,
        name=short_name(name),
        memory=options.memory,
        chosen=options.rungs,
        numerics=options.numerics,
        steps=options.rung_steps,
        folder=options.run,
        say=say,
    )
    print(json.dumps(result) if options.json else ladder_table(result))
    outcomes = {row["outcome"] for row in result["rungs"]}
    return 3 if "failed" in outcomes else 0 if "measured" in outcomes else 2


def _predicted(name: str, options: LadderOptions) -> int:
    from plimsoll.api.ladder import predict
    from plimsoll.report.ladder import predicted_table

    if options.run is not None:
        raise RecipeError("--run is for a ladder that is trained, and --chip only compiles: take one")
    result = predict(
        options.recipe,
        name=short_name(name),
        chip=options.chip or "",
        memory=options.memory,
        chosen=options.rungs,
        numerics=options.numerics,
        say=say,
    )
    print(json.dumps(result) if options.json else predicted_table(result))
    return 3 if any(row["outcome"] == "failed" for row in result["rungs"]) else 0
