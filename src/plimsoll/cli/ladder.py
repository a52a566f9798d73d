"""Command `plimsoll ladder`: compares plans with more and more memory-saving options ("rungs") in a table."""

from __future__ import annotations

import signal
from typing import Any, NoReturn

from plimsoll.cli.options import LadderOptions
from plimsoll.cli.parse import parse_with_recipe, print_answer, say
from plimsoll.errors import RecipeError


def ladder(arguments: list[str]) -> int:
    """Trains a few steps of each plan ("rung") of a ladder, and prints measured values. With --chip, only predicts.

    Returns the exit code: 3 if a rung failed, 2 if no rung could be trained.
    """
    typed = parse_with_recipe(LadderOptions, arguments, command="ladder")
    options = typed.options
    if options.chip is not None and options.run is not None:
        raise RecipeError("--run is for a ladder that is trained, and --chip only compiles: take one")
    from plimsoll.api.ladder import climb, predict
    from plimsoll.report.ladder import ladder_table, predicted_table

    # Arguments of both a trained and a predicted ladder.
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

    # Choose the exit code. A rung that was not trained because it exceeds the budget is no failure.
    outcomes = {row.outcome for row in result.rungs}
    if "failed" in outcomes:
        return 3
    return 0 if options.chip is not None or "measured" in outcomes else 2


def _stop(_number: int, _frame: Any) -> NoReturn:
    raise SystemExit(143)  # an exception, as for Ctrl-C, so that all processes and folders of the ladder are removed
