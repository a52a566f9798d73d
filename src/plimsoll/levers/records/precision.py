"""Precision of matrix products: see `levers/precision.py`."""

from __future__ import annotations

from plimsoll.levers.lever import Lever, Problem, Rates, Rung, Support
from plimsoll.types import Precision

FASTER = 1.05
"""Ratio of speeds above which the planner prefers a lower precision."""


def _worth_trying(problem: Problem, rates: Rates) -> list[str]:
    if "bfloat16" not in rates.flops:  # the chip has no units for it
        return ["float16"] if rates.flops.get("float16", 0.0) > FASTER * rates.flops["float32"] else ["float32"]
    faster = rates.flops["bfloat16"] > FASTER * rates.flops["float32"]
    return ["bfloat16"] if faster else ["float32", "bfloat16"]  # bfloat16 only to save bytes, if float32 does not fit


def _without_units(problem: Problem, rates: Rates, value: str) -> str | None:
    if value in rates.flops:
        return None
    return f"cannot be used on {problem.chip}, which has no units for it: it has {', '.join(rates.flops)}"


PRECISION = Lever(
    name="precision",
    type=Precision,
    help="Type in which matrix products are computed. float16 scales the loss, and skips steps that overflow.",
    plain="float32",
    touches="mixed",
    supports=(Support("precision"),),
    worth_trying=_worth_trying,
    refused=_without_units,
    rungs=(Rung(name="bfloat16", words="dots in bfloat16, weights and sums in float32", value="bfloat16"),),
    words="{value}",
    plain_words="{value}",
    row="{value} (numerics: {plan.numerics})",
    plain_row="{value} (numerics: {plan.numerics})",
)
