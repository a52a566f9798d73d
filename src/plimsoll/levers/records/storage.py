"""How weights, optimizer state, frozen weights and the average are kept between steps: in fewer bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_args

from plimsoll.levers.lever import Lever, Problem, Rates, Rung, Support
from plimsoll.types import EmaBits, FrozenBits, OptimizerBits, WeightBits


def _on_one_device(values: Any) -> Callable[[Problem, Rates], Sequence[int]]:
    """Returns what tries all values on one device, and whole numbers on several: that was not measured yet."""
    return lambda problem, rates: get_args(values) if problem.devices == 1 else [32]


def _words(what: str) -> Callable[[int], str]:
    return lambda value: f"{what} in {value} bits" if value < 32 else ""


def _row(value: int, _plan: Any) -> str:
    return f"{value} bits" if value < 32 else ""


OPTIMIZER_BITS = Lever(
    name="optimizer_bits",
    type=OptimizerBits,
    help="Of each number that the optimizer keeps per weight.",
    plain=32,
    before=32,
    touches="compressed",
    supports=(Support("optimizer_bits", owner="optimizer"),),
    stores="optimizer state",
    chained=True,
    worth_trying=_on_one_device(OptimizerBits),
    rungs=(Rung(name="optimizer-8", words="the optimizer's moments in {} bits", value=8),),
    words=_words("optimizer"),
    label="optimizer state",
    row=_row,
)

WEIGHT_BITS = Lever(
    name="weight_bits",
    type=WeightBits,
    help="Of each weight between steps: 24 is bfloat16 and a correction, 16 is bfloat16 rounded stochastically.",
    plain=32,
    before=32,
    touches="compressed",
    supports=(Support("weight_bits", owner="optimizer"),),
    stores="weights",
    chained=True,
    worth_trying=_on_one_device(WeightBits),
    rungs=(
        Rung(name="weights-24", words="weights in bfloat16 and 8 bits beside the optimizer", value=24),
        Rung(name="weights-16", words="weights in bfloat16, rounded stochastically", value=16),
    ),
    words=_words("weight"),
    label="weights",
    row=_row,
)

FROZEN_BITS = Lever(
    name="frozen_bits",
    type=FrozenBits,
    help="Of each weight that is not learned: 16 is bfloat16, 8 int8, 4 NF4.",
    plain=32,
    before=32,
    touches="compressed",
    supports=(Support("frozen_bits"),),
    chained=True,
    worth_trying=_on_one_device(FrozenBits),
    rungs=(
        Rung(name="frozen-16", words="what is not learned in bfloat16", value=16),
        Rung(name="frozen-8", words="what is not learned in int8", value=8),
        Rung(name="frozen-4", words="what is not learned in NF4", value=4),
    ),
    words=_words("frozen"),
    label="frozen weights",
    row=_row,
)

EMA_BITS = Lever(
    name="ema_bits",
    type=EmaBits,
    help="Of the average of the weights that --ema-decay keeps: 16 is bfloat16 rounded stochastically.",
    plain=32,
    before=32,
    touches="compressed",
    supports=(
        Support(
            "ema_bits",
            lacking="{recipe} keeps no average of its weights. Leave it out, or give --ema-decay",
            no_rung="the recipe keeps no average of its weights (--ema-decay)",
        ),
    ),
    chained=True,
    worth_trying=_on_one_device(EmaBits),
    rungs=(Rung(name="ema-16", words="the average of the weights in bfloat16", value=16),),
    words=_words("ema"),
    label="average",
    row=_row,
)
