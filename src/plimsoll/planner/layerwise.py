"""Whether a step may update layer by layer, in how many backward passes; what does not go with it is refused."""

from collections.abc import Sequence

from plimsoll.errors import RecipeError
from plimsoll.planner.types import Problem


def passes(problem: Problem, precisions: Sequence[str]) -> list[int]:
    """Values of the lever to search, the cheapest first; the pinned one alone. Raises RecipeError, with the reason."""
    pinned = problem.pins.get("layerwise")
    if pinned == 0:
        return [0]
    why_not = _why_not(problem, pinned or problem.layerwise, precisions)
    if pinned is None:
        return [0] if why_not else [0, problem.layerwise]
    if why_not:
        raise RecipeError(f"--layerwise {pinned} {why_not}")
    return [pinned]


def _why_not(problem: Problem, asked: int, precisions: Sequence[str]) -> str | None:
    pins, whole = problem.pins, problem.effective_batch
    micro = pins.get("micro_batch", whole)
    if not problem.layerwise:
        return (
            f"needs a loss in layers (types.Layered) and plimsoll.AdamW, and {problem.recipe} has not both: leave it"
            " out"
        )
    if asked == 1 and problem.layerwise == 2:
        return (
            "would update a layer before the norm of the whole gradient is known, and the recipe clips to that: take"
            " --layerwise 2, a backward pass for the norm and one that updates, or a recipe without a clip"
        )
    if asked == 2 and problem.layerwise == 1:
        return (
            "would do a backward pass for the norm of a gradient that the recipe does not clip: take --layerwise 1,"
            " which updates in one"
        )
    if micro != whole:
        return (
            f"takes the whole effective batch of {whole} examples at once, and --micro-batch {micro} splits it: a"
            " gradient summed over micro-batches must be held whole. Leave one of them out"
        )
    if pins.get("remat", "block") != "block":
        return (
            f"keeps the input of each block and computes the rest again, which is --remat block, and --remat"
            f" {pins['remat']} is pinned: leave one of them out"
        )
    if list(precisions) == ["float16"]:
        return (
            "with --precision float16 could not leave out a step whose gradient overflows: when that is seen, layers"
            " have been updated. Take another --precision, or leave it out"
        )
    if pins.get("offload", "none") != "none":
        return (
            f"updates on the device what --offload {pins['offload']} keeps on the host, which is fetched a piece at a"
            " time in an update of its own: leave one of them out"
        )
    if problem.devices > 1:
        return (
            f"is for one device, and {problem.chip} has {problem.devices}, over which --fsdp splits gradient and state"
            " instead: leave it out"
        )
    return None
