"""`plimsoll ladder`: parse, climb, print."""

from __future__ import annotations

import json
import signal
from typing import Any, NoReturn

from plimsoll.cli.options import LadderOptions
from plimsoll.cli.parse import Typed, parse_with_recipe, say
from plimsoll.errors import RecipeError
from plimsoll.recipes.own.files import short_name


def ladder(arguments: list[str]) -> int:
    """Trains a few steps on each rung and prints the measured table. 3 if a rung failed, 2 if none could be run.

    With --chip, compiles the rungs and prints the predicted one.
    """
    typed = parse_with_recipe(LadderOptions, arguments, command="ladder")
    options = typed.options
    if options.chip is not None:
        return _predicted(typed)
    from plimsoll.api.ladder import climb
    from plimsoll.report.ladder import ladder_table

    def stop(_number: int, _frame: Any) -> NoReturn:
        raise SystemExit(143)  # as at Ctrl-C: on the way out, every process and folder of the ladder goes too

    signal.signal(signal.SIGTERM, stop)
    result = climb(
        typed.recipe,
        name=short_name(typed.name),
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


def _predicted(typed: Typed[LadderOptions]) -> int:
    from plimsoll.api.ladder import predict
    from plimsoll.report.ladder import predicted_table

    options = typed.options
    if options.run is not None:
        raise RecipeError("--run is for a ladder that is trained, and --chip only compiles: take one")
    result = predict(
        typed.recipe,
        name=short_name(typed.name),
        chip=options.chip or "",
        memory=options.memory,
        chosen=options.rungs,
        numerics=options.numerics,
        say=say,
    )
    print(json.dumps(result) if options.json else predicted_table(result))
    return 3 if any(row["outcome"] == "failed" for row in result["rungs"]) else 0
