"""`plimsoll ladder`: parse, climb, print."""

from __future__ import annotations

import signal
from typing import Any, NoReturn

from plimsoll.cli.options import LadderOptions
from plimsoll.cli.parse import parse_with_recipe, print_answer, say
from plimsoll.errors import RecipeError


def ladder(arguments: list[str]) -> int:
    """Trains a few steps on each rung and prints the measured table. 3 if a rung failed, 2 if none could be run.

    With --chip, compiles the rungs and prints the predicted one.
    """
    typed = parse_with_recipe(LadderOptions, arguments, command="ladder")
    options = typed.options
    if options.chip is not None and options.run is not None:
        raise RecipeError("--run is for a ladder that is trained, and --chip only compiles: take one")
    from plimsoll.api.ladder import climb, predict
    from plimsoll.report.ladder import ladder_table, predicted_table

    # Both kinds of ladder take the same rungs.
    shared: dict[str, Any] = {
        "name": typed.name,
        "memory": options.memory,
        "chosen": options.rungs,
        "numerics": options.numerics,
        "say": say,
    }
    if options.chip is None:
        signal.signal(signal.SIGTERM, _stop)
        result = climb(typed.recipe, steps=options.rung_steps, folder=options.run, **shared)
        text = ladder_table(result)
    else:
        result = predict(typed.recipe, chip=options.chip, **shared)
        text = predicted_table(result)
    print_answer(options, result.to_dict(), lambda _: text)

    # A rung that is trained may be predicted to need too much, and is not run then.
    outcomes = {row.outcome for row in result.rungs}
    if "failed" in outcomes:
        return 3
    return 0 if options.chip is not None or "measured" in outcomes else 2


def _stop(_number: int, _frame: Any) -> NoReturn:
    raise SystemExit(143)  # as at Ctrl-C: on the way out, every process and folder of the ladder goes too
