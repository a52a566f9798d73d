"""Type of the residual stream and of the activations kept for the backward pass: see `levers/activations.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll.levers.lever import LeftOut, Lever, Problem, Rates, Rung, Support, Values
from plimsoll.levers.records.precision import PRECISION
from plimsoll.types import Activations


def _refused(problem: Problem, rates: Rates, value: Activations) -> str | None:
    precisions = PRECISION.tried(problem, rates)
    if value == "float32" or "bfloat16" in precisions:
        return None
    return (
        f"needs products in bfloat16, and they are in {precisions[0]} here: give --precision bfloat16"
        + (" --numerics mixed" if problem.numerics == "exact" else "")
        + ", or leave it out"
    )


EITHER_WAY = 0.85
"""Smallest ratio of measured to predicted time for float32 activations on a CPU that multiplies in bfloat16. There
bfloat16 was 1.04 to 1.1 times as fast as float32 for text, equally fast for puzzles, and 0.85 times as fast for recipe
`longcontext` (notes)."""


def _worth_trying(problem: Problem, rates: Rates) -> list[Activations]:
    """Returns the types to try: only bfloat16 on an accelerator that multiplies in it.

    On an H100 a decoder written by hand was 1.8 times as fast with bfloat16, in three quarters of the bytes (notes).
    On a CPU either type may be faster. If products in bfloat16 are not faster, bfloat16 only saves bytes.
    """
    if PRECISION.tried(problem, rates) != ["bfloat16"]:
        return ["float32", "bfloat16"]
    return ["bfloat16", "float32"] if problem.platform == "cpu" else ["bfloat16"]


def _goes_with(levers: Values, _tried: Mapping[str, Sequence[Any]]) -> bool:
    return levers["activations"] == "float32" or levers["precision"] == "bfloat16"


def _over_bfloat16(_recipe: Any, levers: Values) -> Activations:
    if levers["precision"] != "bfloat16":
        raise LeftOut("it needs products in bfloat16: add bfloat16 to --rungs")
    return "bfloat16"


ACTIVATIONS = Lever(
    name="activations",
    type=Activations,
    help=(
        "Type of the activations between matrix products. bfloat16 needs --precision bfloat16. Statistics of norms,"
        " softmax, loss, weights and optimizer stay in float32."
    ),
    plain="float32",
    touches="mixed",
    supports=(Support("activations"),),
    worth_trying=_worth_trying,
    refused=_refused,
    goes_with=_goes_with,
    sets_apart=("cpu",),  # XLA for CPU widens bfloat16 activations
    may_gain=lambda value, problem: EITHER_WAY if value == "float32" and problem.platform == "cpu" else 1.0,
    rungs=(Rung(name="activations-16", words="activations in bfloat16, too", value=_over_bfloat16),),
)
