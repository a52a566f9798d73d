"""What only some recipes do with a trained model: solving a puzzle, ranking items. In a process that imports JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll.inference.trained import Trained
from plimsoll.recipes.puzzles import solve as puzzles
from plimsoll.recipes.recommend import rank as recommend


def solve(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Solves one puzzle. `asked`: `run`, `step`, and the fields of `recipes.puzzles.question.Question`."""
    return puzzles.solve(Trained(asked["run"], step=asked["step"]), asked)


def rank(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Ranks items after a history. `asked`: `run`, `step`, and what `recipes.recommend.rank.rank` takes."""
    return recommend.rank(Trained(asked["run"], step=asked["step"]), asked)
