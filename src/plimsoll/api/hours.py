"""Steps that a run can take in some hours, beside its start, evaluations and saves: `--hours` of `--best-size`."""

from __future__ import annotations

from numbers import Real

from plimsoll.errors import RecipeError
from plimsoll.recipes.base import MOST_STEPS

MOST_HOURS = 24 * 366.0
RESERVED = 0.05
"""Share of the time in which no step is expected, besides evaluations: the start, saves, a slower hour."""
LEAST_RESERVED = 10.0
"""Seconds of that at least: importing, loading what was compiled, the first batch, the last save."""
EVALUATIONS = 4
"""Evaluations of a run by default: every quarter of it."""
FORWARD = 1 / 3
"""Time that a token takes in an evaluation, as a share of its time in a step."""


def require_hours(hours: float | None, *, best_size: bool, memory: str | int | None) -> float:
    """Returns the hours of `--best-size`.

    Raises:
        RecipeError: One of hours, budget and `best_size` is missing, or the hours are no time.
    """
    if hours is None:
        raise RecipeError(
            "--best-size looks for the size with the lowest loss after a time, and none is given: add --hours, like"
            " --hours 6"
        )
    if not isinstance(hours, Real):
        raise RecipeError(f"--hours must be a number of hours, got {hours!r}")
    if not best_size:
        raise RecipeError(
            f"--hours {hours:g} is the time for which --best-size finds a size and steps: add --best-size, or leave"
            " --hours out (--max-minutes stops a run early)"
        )
    if not 2 * LEAST_RESERVED / 3600 <= hours <= MOST_HOURS:
        raise RecipeError(
            f"--hours must be from {2 * LEAST_RESERVED / 3600:.4f} ({2 * LEAST_RESERVED:.0f} seconds) to"
            f" {MOST_HOURS:,.0f} (a year), got {hours:g}: the start and the last save alone take some seconds"
        )
    if memory is None:
        raise RecipeError(
            "--best-size looks for the best size within a budget, and what is free at the moment is none that stays:"
            " add --memory, like --memory 8GiB"
        )
    return hours


def reserved_seconds(seconds: float, *, tokens_per_second: float, held_out: float) -> float:
    """Returns the seconds of a run in which no step is expected.

    Args:
        seconds: Time from the start of the training process to its end.
        tokens_per_second: Rate of training.
        held_out: Tokens of an evaluation.
    """
    return max(LEAST_RESERVED, RESERVED * seconds) + EVALUATIONS * FORWARD * held_out / tokens_per_second


def steps_in(seconds: float, *, step_seconds: float, tokens_per_step: int, held_out: float) -> int:
    """Returns the optimizer steps that a run can take in a time; 0 if it is too short for one.

    Args:
        seconds: Time from the start of the training process to its end.
        step_seconds: Seconds of a step.
        tokens_per_step: Tokens of a step.
        held_out: Tokens of an evaluation.
    """
    rate = tokens_per_step / step_seconds
    usable = seconds - reserved_seconds(seconds, tokens_per_second=rate, held_out=held_out)
    return min(MOST_STEPS, max(0, int(usable / step_seconds)))
