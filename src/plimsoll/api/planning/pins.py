"""Memory-saving options ("levers") that the user sets, one by one or by `--plan FILE`: checks of their values."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plimsoll.errors import RecipeError, did_you_mean, names_in_words
from plimsoll.levers.registry import LEVERS
from plimsoll.planned import Planned
from plimsoll.recipes.recipe import Recipe
from plimsoll.recipes.saved import name_of

PLAN_ADVICE = "write one with `plimsoll plan ... --json > plan.json`, or take a run's plan.json"


def read_plan_file(path: str) -> Planned:
    """Returns the plan in a file: the output of `plimsoll plan --json`, or a run's plan.json.

    Raises:
        RecipeError: The file cannot be read, is not a plan, or says that no plan fits.
    """
    try:
        content = json.loads(Path(path).expanduser().read_text("utf-8"))
    except (OSError, ValueError) as problem:
        raise RecipeError(f"--plan {path} cannot be read ({problem}): {PLAN_ADVICE}") from None
    if isinstance(content, dict) and "plan" not in content and "fits" in content:
        raise RecipeError(f"--plan {path} is a refusal, because no plan fitted its budget: plan with a larger --memory")
    try:
        return Planned.from_dict(content, "it")
    except (LookupError, TypeError, ValueError) as problem:
        raise RecipeError(f"--plan {path} is not a plan, {problem}: {PLAN_ADVICE}") from None


def levers_of(path: str, recipe: Recipe, pins: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the value of every memory-saving option in the plan file at `path`. Ignores predicted bytes in it.

    Raises:
        RecipeError: The file is not a plan, has another effective batch than the recipe, or contradicts `pins`.
    """
    plan = read_plan_file(path).plan
    require_levers(plan.levers)
    if plan.effective_batch != recipe.effective_batch:
        raise RecipeError(
            f"--plan {path} splits {plan.effective_batch} examples a step ({plan.micro_batch} x {plan.accumulation}),"
            f" and the recipe's effective batch is {recipe.effective_batch}: plan again, or change --batch-size"
        )
    for name, value in pins.items():
        if plan.levers[name] != value:
            raise RecipeError(
                f"{LEVERS[name].flag} {value} and --plan {path} with {plan.levers[name]} contradict each other: give"
                " one of them"
            )
    return plan.levers


def require_levers(pins: Mapping[str, Any]) -> None:
    """Raises RecipeError if a key of `pins` is no lever (memory-saving option), or the lever cannot have the value."""
    for name, value in pins.items():
        if name not in LEVERS:
            names = names_in_words(LEVERS, all_of_them="docs/all-levers.md")
            hint = did_you_mean(str(name), LEVERS) or f"; there are {names}"
            raise RecipeError(f"pins name levers, and there is none called {name}{hint}")
        if not LEVERS[name].allows(value):
            shown = textwrap.shorten(repr(value), 80)
            raise RecipeError(f"{LEVERS[name].flag} cannot be {shown}: it takes {LEVERS[name].allowed}")


def require_supported(recipe: Recipe, pins: Mapping[str, Any]) -> None:
    """Raises RecipeError if the value of a memory-saving option in `pins` would have no effect for `recipe`."""
    supported = recipe.hints.levers
    for name, lever in LEVERS.items():
        if name in pins and (missing := lever.missing(pins[name], supported)):
            reason = missing.refusal(name_of(recipe))
            raise RecipeError(f"{lever.flag} {pins[name]} would change nothing: {reason}")
