"""Type of the residual stream and of what the backward pass keeps: see `levers/activations.py`."""

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


def _worth_trying(problem: Problem, rates: Rates) -> list[Activations]:
    """Returns bfloat16 alone on a chip that multiplies in it: there it is faster, and smaller.

    A decoder written by hand was 1.8 times as fast with it on an H100, in three quarters of the bytes (docs/levers.md);
    ours is 1.04 to 1.1 times as fast on a CPU with AVX512-BF16, in two thirds (docs/log.md, "Activations in bfloat16").
    Elsewhere it is for its bytes.
    """
    return ["bfloat16"] if PRECISION.tried(problem, rates) == ["bfloat16"] else ["float32", "bfloat16"]


def _goes_with(levers: Values, _tried: Mapping[str, Sequence[Any]]) -> bool:
    return levers["activations"] == "float32" or levers["precision"] == "bfloat16"


def _over_bfloat16(_recipe: Any, levers: Values) -> Activations:
    if levers["precision"] != "bfloat16":
        raise LeftOut("it needs products in bfloat16: name the rung bfloat16, too")
    return "bfloat16"


ACTIVATIONS = Lever(
    name="activations",
    type=Activations,
    help=(
        "Type of activations between products. bfloat16 needs --precision bfloat16; norms' statistics, softmax and loss"
        " stay in float32, and so do weights and optimizer."
    ),
    plain="float32",
    before="float32",
    touches="mixed",
    supports=(Support("activations"),),
    worth_trying=_worth_trying,
    refused=_refused,
    goes_with=_goes_with,
    rungs=(Rung(name="activations-16", words="activations in bfloat16, too", value=_over_bfloat16),),
    row=lambda value, plan: value if value != "float32" or plan.precision == "bfloat16" else "",
)
