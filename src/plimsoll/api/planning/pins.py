"""Levers that the user sets, one by one or by `--plan FILE`. Refuses a wrong value, and one that changes nothing."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from plimsoll.errors import RecipeError, did_you_mean, names_in_words
from plimsoll.levers.registry import LEVERS
from plimsoll.recipes.recipe import Recipe
from plimsoll.recipes.saved import name_of

PLAN_ADVICE = "write one with `plimsoll plan ... --json > plan.json`, or take a run's plan.json"


def read_plan_file(path: str) -> dict[str, Any]:
    """Returns the object in a plan file: the output of `plimsoll plan --json`, or a run's plan.json.

    Raises:
        RecipeError: The file cannot be read, is not a plan, or is one that did not fit.
    """
    try:
        planned: Any = json.loads(Path(path).expanduser().read_text("utf-8"))
    except (OSError, ValueError) as problem:
        raise RecipeError(f"--plan {path} cannot be read ({problem}): {PLAN_ADVICE}") from None
    if not isinstance(planned, dict):
        raise RecipeError(f"--plan {path} is not a plan: {PLAN_ADVICE}")
    planned = cast(dict[str, Any], planned)
    if planned.get("fits") is False and "plan" not in planned:  # `--floor` may print a plan over the budget
        raise RecipeError(f"--plan {path} is a refusal, nothing had fitted its budget: plan with a larger --memory")
    return planned


def levers_of(path: str, recipe: Recipe, pins: Mapping[str, Any]) -> dict[str, Any]:
    """Returns every lever as the plan file at `path` has it. Its bytes are predicted anew, for this recipe.

    Raises:
        RecipeError: The file is no plan, is of another batch, or contradicts `pins`.
    """
    content = read_plan_file(path).get("plan")
    plan = cast(dict[str, Any], content) if isinstance(content, dict) else {}
    missing = [name for name in (*LEVERS, "accumulation") if name not in plan]
    if missing:
        raise RecipeError(f"--plan {path} is not a plan, it does not say {', '.join(missing)}: {PLAN_ADVICE}")
    levers = {name: plan[name] for name in LEVERS}
    micro, times = levers["micro_batch"], plan["accumulation"]
    wrong = [f"{name} {levers[name]!r}" for name, lever in LEVERS.items() if not lever.allows(levers[name])]
    wrong += [f"accumulation {times!r}"] if type(times) is not int else []
    if wrong:
        raise RecipeError(f"--plan {path} says {wrong[0]}, which is no value of it: {PLAN_ADVICE}")
    if micro * times != recipe.effective_batch:
        raise RecipeError(
            f"--plan {path} splits {micro * times} examples a step ({micro} x {times}), and the recipe's effective"
            f" batch is {recipe.effective_batch}: plan again, or change --batch-size"
        )
    other = [name for name, value in pins.items() if levers[name] != value]
    if other:
        raise RecipeError(
            f"{LEVERS[other[0]].flag} {pins[other[0]]} and --plan {path} with {levers[other[0]]} contradict each other:"
            " give one of them"
        )
    return levers


def require_levers(pins: Mapping[str, Any]) -> None:
    """Raises RecipeError where a pin is of no lever, or its value is none of the lever's."""
    for name, value in pins.items():
        if name not in LEVERS:
            hint = (
                did_you_mean(str(name), LEVERS) or f"; there are {names_in_words(LEVERS, all_of_them='docs/levers.md')}"
            )
            raise RecipeError(f"pins name levers, and there is none called {name}{hint}")
        if not LEVERS[name].allows(value):
            shown = textwrap.shorten(repr(value), 80)
            raise RecipeError(f"{LEVERS[name].flag} cannot be {shown}: it takes {LEVERS[name].allowed}")


def require_supported(recipe: Recipe, pins: Mapping[str, Any]) -> None:
    """Raises RecipeError where a pinned value would change nothing for `recipe`."""
    supported = recipe.hints.levers
    for name, lever in LEVERS.items():
        if name in pins and (missing := lever.missing(pins[name], supported)):
            reason = missing.refusal(name_of(recipe))
            raise RecipeError(f"{lever.flag} {pins[name]} would change nothing: {reason}")
