"""Updates layer by layer: their conditions, the number of backward passes, and conflicts with other levers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll.levers.lever import LeftOut, Lever, Problem, Rates, Rung, Support, Values
from plimsoll.levers.records.precision import PRECISION
from plimsoll.types import Passes

OPTIMIZERS = "plimsoll.AdamW, Lion or AdamATan2"
"""Optimizers that can update layer by layer, for error messages (checked in `tests/optimizers/test_claims.py`)."""
RECOMPUTES = ("block", "offload")
"""Values of `remat` for updates layer by layer: only the input of each block is kept, on the device or the host."""


WRONG_PASSES: Mapping[int, str] = {
    1: (
        "would update a layer before the norm of the whole gradient is known, which the recipe clips: take --layerwise"
        " 2, with a backward pass for the norm and one that updates, or a recipe without a clip"
    ),
    2: (
        "would do a backward pass for the norm of a gradient that the recipe does not clip: take --layerwise 1, which"
        " updates in one"
    ),
}


def _goes_with(levers: Values, tried: Mapping[str, Sequence[Any]]) -> bool:
    """Returns False if updates layer by layer conflict with the other levers.

    Also returns False for `remat` = `offload`, which is slow and saves few bytes here, unless the user set it.
    """
    if not levers["layerwise"]:
        return True
    is_only_choice = levers["remat"] != "offload" or len(tried["remat"]) == 1
    return is_only_choice and _conflict(levers) is None


def _refused(problem: Problem, rates: Rates, passes: int) -> str | None:
    if passes == 0:
        return None
    whole = problem.effective_batch
    micro = problem.pins.get("micro_batch", whole)
    if not problem.layerwise:
        return (
            f"needs a loss in layers (types.Layered) and {OPTIMIZERS}, and {problem.recipe} has not both: leave it out"
        )
    if passes != problem.layerwise:
        return WRONG_PASSES[passes]
    if micro != whole:
        return (
            f"takes the whole effective batch of {whole} examples at once, and --micro-batch {micro} splits it: a"
            " gradient summed over micro-batches must be held whole. Leave one of them out"
        )
    precision = PRECISION.tried(problem, rates)[0]  # float16 is only ever tried alone
    return _conflict({"remat": "block", "offload": "none", "fsdp": 1, **problem.pins, "precision": precision})


def _conflict(levers: Values) -> str | None:
    """Returns the reason why updates layer by layer conflict with other levers, or None."""
    if levers["remat"] not in RECOMPUTES:
        return (
            f"keeps the input of each block and computes the rest again, which is --remat block or offload, and --remat"
            f" {levers['remat']} is pinned: leave one of them out"
        )
    if levers["precision"] == "float16":
        return (
            "with --precision float16 could not leave out a step whose gradient overflows: when that is seen, layers"
            " have been updated. Take another --precision, or leave it out"
        )
    if levers["offload"] != "none":
        return (
            f"updates weights on the device layer by layer, and --offload {levers['offload']} has its own update of"
            " state on the host: leave one of them out"
        )
    is_whole = all(levers.get(name, 32) == 32 for name in ("optimizer_bits", "weight_bits"))
    if levers["fsdp"] > 1 and not is_whole:
        return (
            f"with --fsdp {levers['fsdp']} updates parts of layers, and a state in fewer bits is kept in blocks of"
            " whole layers: leave --optimizer-bits and --weight-bits, or one of the others, out"
        )
    return None


def _passes(problem: Problem, levers: Values) -> int:
    if not problem.layerwise:
        raise LeftOut(f"the recipe's loss and optimizer do not support it; {OPTIMIZERS} would")
    if levers["micro_batch"] != problem.effective_batch:
        raise LeftOut(
            f"it takes the whole effective batch of {problem.effective_batch} at once, and there are micro-batches of"
            f" {levers['micro_batch']} here: `--rungs loss-chunk remat layerwise` climbs without them"
        )
    if levers["remat"] not in RECOMPUTES:
        raise LeftOut("it computes blocks again in the backward pass: add remat to --rungs")
    return problem.layerwise


IN_WORDS: Mapping[Passes, str] = {
    1: "layer by layer, one backward pass",
    2: "layer by layer, two backward passes: the first for the gradient's norm",
}
"""Text of this lever's row in a plan's table, by number of backward passes."""

LAYERWISE = Lever(
    name="layerwise",
    type=Passes,
    help=(
        "Backward passes of a step that updates each layer as soon as it has its gradient, so that the whole gradient"
        " never exists: 1, or 2 with --clip-norm. 0 updates all layers at the end."
    ),
    plain=0,
    supports=(Support("layerwise"),),
    worth_trying=lambda problem, rates: [0, problem.layerwise] if problem.layerwise else [0],
    refused=_refused,
    goes_with=_goes_with,
    rungs=(Rung(name="layerwise", words="layers are updated one by one; backward passes: {}", value=_passes),),
    words="layer by layer in backward passes: {value}",
    label="update",
    row=IN_WORDS,
)
