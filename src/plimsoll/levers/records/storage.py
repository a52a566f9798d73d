"""Levers that store weights, optimizer state, frozen weights and the EMA of the weights in fewer bits between steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from plimsoll.levers.lever import Lever, Rung, Support
from plimsoll.types import EmaBits, EmbeddingBits, FrozenBits, OptimizerBits, WeightBits


def _lever_of_bits(
    name: str,
    values: Any,
    *,
    subject: str,
    help: str,
    supports: tuple[Support, ...],
    rungs: tuple[Rung, ...],
    label: str,
    tried: Sequence[int] = (),
) -> Lever:
    """Returns the record of a lever whose value is the number of bits in which a number is stored.

    Its text in progress lines begins with `subject`. The search tries all values, or only `tried` if given.
    """

    return Lever(
        name=name,
        type=values,
        help=help,
        plain=32,
        touches="compressed",
        supports=supports,
        chained=True,
        worth_trying=lambda problem, rates: tried or get_args(values),
        rungs=rungs,
        words=f"{subject} in {{value}} bits",
        label=label,
        row="{value} bits",
    )


OPTIMIZER_BITS = _lever_of_bits(
    "optimizer_bits",
    OptimizerBits,
    subject="optimizer",
    help="Bits of each number that the optimizer keeps per weight. 16 is bfloat16, which the planner does not try.",
    supports=(Support("optimizer_bits", owner="optimizer"),),
    rungs=(Rung(name="optimizer-8", words="the optimizer's moments in {} bits", value=8),),
    tried=(32, 8),
    label="optimizer state",
)

WEIGHT_BITS = _lever_of_bits(
    "weight_bits",
    WeightBits,
    subject="weight",
    help="Bits of each weight between steps: 24 is bfloat16 and a correction, 16 is bfloat16 rounded stochastically.",
    supports=(Support("weight_bits", owner="optimizer"),),
    rungs=(
        Rung(name="weights-24", words="weights in bfloat16 and 8 bits beside the optimizer", value=24),
        Rung(name="weights-16", words="weights in bfloat16, rounded stochastically", value=16),
    ),
    label="weights",
)

FROZEN_BITS = _lever_of_bits(
    "frozen_bits",
    FrozenBits,
    subject="frozen",
    help="Bits of each frozen weight: 16 is bfloat16, 8 int8, 4 NF4.",
    supports=(Support("frozen_bits"),),
    rungs=(
        Rung(name="frozen-16", words="what is not learned in bfloat16", value=16),
        Rung(name="frozen-8", words="what is not learned in int8", value=8),
        Rung(name="frozen-4", words="what is not learned in NF4", value=4),
    ),
    label="frozen weights",
)

EMA_BITS = _lever_of_bits(
    "ema_bits",
    EmaBits,
    subject="ema",
    help="Bits of the EMA weights that --ema-decay keeps: 16 is bfloat16 rounded stochastically.",
    supports=(
        Support(
            "ema_bits",
            lacking="{recipe} keeps no average of its weights. Leave it out, or give --ema-decay",
            no_rung="the recipe keeps no average of its weights (--ema-decay)",
        ),
    ),
    rungs=(Rung(name="ema-16", words="the average of the weights in bfloat16", value=16),),
    label="average",
)


EMBEDDING_BITS = Lever(
    name="embedding_bits",
    type=EmbeddingBits,
    help="Bits of each weight of a frozen embedding and output layer: 16 is bfloat16 (float32 with --frozen-bits 32), 8"
    " int8, 4 NF4.",
    plain=16,
    touches="compressed",
    supports=(Support("embedding_bits"),),
    by_user=True,
    rungs=(
        Rung(name="embedding-8", words="the frozen embedding and output layer in int8", value=8),
        Rung(name="embedding-4", words="the frozen embedding and output layer in NF4", value=4),
    ),
    words="embedding in {value} bits",
    label="embedding, output layer",
    row="{value} bits",
)
"""The search does not try this lever: its effect on the loss was measured on small models only."""
