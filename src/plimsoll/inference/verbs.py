"""Commands that only some recipes support (`recipes/verbs.py`), answered in a process that imports JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll.inference.trained import Trained
from plimsoll.recipes.saved import name_of
from plimsoll.recipes.verbs import lacking, resolved


def answer(verb: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the run's recipe answers to one command.

    Args:
        verb: Name in `Recipe.verbs`.
        request: `run`, `step`, and the options of the command.

    Raises:
        RecipeError: The run's recipe has no such verb.
    """
    trained = Trained(request["run"], step=request["step"])
    if verb not in trained.recipe.verbs:
        raise lacking(verb, trained.folder.path, name_of(trained.recipe))
    return resolved(trained.recipe.verbs[verb].answer)(trained, request)
