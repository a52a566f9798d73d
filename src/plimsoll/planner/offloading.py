"""Whether a model has anything that is worth moving to the host's memory: levers/offload.py does it."""

from __future__ import annotations

from plimsoll.errors import RecipeError
from plimsoll.levers.records.offload import OFFLOAD_WORDS, OFFLOADED, SUPPORTED_AS
from plimsoll.planner.types import Problem, Static
from plimsoll.types import Offload


def moves(static: Static, offload: Offload) -> bool:
    """Returns whether every part that `offload` names has something that is worth moving."""
    return all(static.movable.get(part, 0) for part in SUPPORTED_AS if part in OFFLOADED[offload])


def require_moved(problem: Problem, static: Static) -> None:
    """Raises RecipeError where what is pinned would move nothing."""
    pinned = problem.pins.get("offload", "none")
    if moves(static, pinned):
        return
    empty = [part for part in SUPPORTED_AS if part in OFFLOADED[pinned] and not static.movable.get(part)]
    words = " or ".join(OFFLOAD_WORDS[part] for part in empty)
    raise RecipeError(
        f"--offload {pinned} would change nothing: {problem.recipe} has no {words} large enough to be moved"
        f"{' (of what is frozen, layers that are stacked along a first axis are)' if 'frozen' in empty else ''}. Leave"
        " it out"
    )
