"""The rungs of a recipe's ladder: from nothing done about memory to every lever pulled, one lever more on each.

Part of the joint. The list is data: a lever that is new in `types.LEVERS` gets its plain value in `PLAIN` and a line in
`LINES`, among those of its class: exact levers first, so that the losses above the first mixed rung can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll.api.pins import OFF
from plimsoll.api.plan import PREFETCH
from plimsoll.errors import RecipeError
from plimsoll.recipes.base import Recipe
from plimsoll.types import Numerics
from plimsoll.units import MIB, format_bytes

Levers = Mapping[str, Any]

PLAIN: dict[str, Any] = OFF | {"fsdp": 1, "prefetch": max(PREFETCH), "async_save": True}
"""Every lever as if memory were free; the micro-batch is then the recipe's whole effective batch."""

CLASSES: tuple[Numerics, ...] = ("exact", "mixed", "compressed")
"""From the class that leaves the numbers alone to the one that touches them most."""

NOT_CLIMBED = ("fsdp",)
"""Levers without a rung: this machine is one device."""

WORTH_COUNTING_BYTES = MIB
"""Of prefetched batches; less is lost in the noise of a process."""


class LeftOut(Exception):
    """Why this recipe has no such rung."""


@dataclass(frozen=True)
class Line:
    """A lever's place on the ladder."""

    name: str
    lever: str
    value: Callable[[Recipe, Levers], Any]
    """From the recipe and the levers so far; raises LeftOut where it would change nothing."""
    numerics: Numerics
    words: str
    """What it does; `{}` is the value."""


@dataclass(frozen=True)
class Rung:
    """A value for every lever, and which of them is new."""

    name: str
    lever: str
    """Empty for the first."""
    numerics: Numerics
    words: str
    pins: Levers


def _always(value: Any) -> Callable[[Recipe, Levers], Any]:
    return lambda _recipe, _levers: value


def _middle(recipe: Recipe, _levers: Levers) -> int:
    """The divisor of the effective batch that is nearest to its root: as many times as examples at a time."""
    whole = recipe.effective_batch
    between = [n for n in range(2, whole) if whole % n == 0]
    if not between:
        raise LeftOut(f"an effective batch of {whole} has no divisor between 1 and itself")
    return min(between, key=lambda n: abs(math.log(n / math.sqrt(whole))))


def _one(_recipe: Recipe, levers: Levers) -> int:
    if levers["micro_batch"] == 1:
        raise LeftOut("the micro-batch is 1 already")
    return 1


def _loss_chunk(recipe: Recipe, levers: Levers) -> int:
    """The largest of the recipe's that a micro-batch has more tokens than.

    None is made up for smaller micro-batches: a chunk of 64, where 256 tokens were left, took 11 MiB more and not less
    (docs/log.md, "The ladder").
    """
    chunks = sorted(recipe.loss_chunks)
    if not chunks:
        raise LeftOut("the recipe names no chunks worth trying (`loss_chunks`)")
    if recipe.rate_unit != "tokens":  # nobody knows how many rows of logits an example has
        return chunks[0]
    tokens = levers["micro_batch"] * recipe.rate_per_example
    smaller = [chunk for chunk in chunks if chunk < tokens]
    if not smaller:
        raise LeftOut(f"a micro-batch has {tokens:,} tokens, no more than its smallest chunk of {chunks[0]:,}")
    return smaller[-1]


def _layerwise(recipe: Recipe, levers: Levers) -> int:
    if not recipe.layerwise_passes:
        raise LeftOut("the recipe's optimizer has no update in parts: it is not plimsoll.AdamW")
    if levers["micro_batch"] != recipe.effective_batch:
        raise LeftOut(
            f"it takes the whole effective batch of {recipe.effective_batch} at once, and there are micro-batches of"
            f" {levers['micro_batch']} here: `--rungs loss-chunk remat layerwise` climbs without them"
        )
    if levers["remat"] != "block":
        raise LeftOut("it computes blocks again in the backward pass: name the rung remat, too")
    return recipe.layerwise_passes


def _attention_chunk(recipe: Recipe, _levers: Levers) -> int:
    if not recipe.attention_chunks:
        raise LeftOut("its scores are small: the recipe names no blocks worth trying (`attention_chunks`)")
    return min(recipe.attention_chunks)


def _no_prefetch(recipe: Recipe, _levers: Levers) -> int:
    import numpy as np

    spec = recipe.batch_spec(recipe.effective_batch).values()
    size = max(PREFETCH) * sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in spec)
    if size < WORTH_COUNTING_BYTES:
        raise LeftOut(f"the {max(PREFETCH)} batches made ready in the background are {format_bytes(size)}")
    return 0


def _offload(_recipe: Recipe, _levers: Levers) -> str:
    raise LeftOut(
        "a ladder runs on this machine's CPU, where the host's memory is the device's: nothing would be saved"
    )


FIRST = "plain"

LINES: tuple[Line, ...] = (
    Line("save", "async_save", _always(False), "exact", "training waits for a save: no second copy of the state"),
    Line("micro-batch", "micro_batch", _middle, "exact", "{} examples at a time"),
    Line("loss-chunk", "loss_chunk", _loss_chunk, "exact", "the logits of {} tokens at a time"),
    Line("micro-batch-1", "micro_batch", _one, "exact", "one example at a time"),
    Line("attention", "attention_chunk", _attention_chunk, "exact", "attention in blocks of {} positions"),
    Line("remat", "remat", _always("block"), "exact", "blocks are computed again in the backward pass"),
    Line("layerwise", "layerwise", _layerwise, "exact", "layers are updated one by one; backward passes: {}"),
    Line("prefetch", "prefetch", _no_prefetch, "exact", "no batch is made ready in the background"),
    Line("offload", "offload", _offload, "exact", "the optimizer's state lies on the host"),
    Line("bfloat16", "precision", _always("bfloat16"), "mixed", "dots in bfloat16, weights and sums in float32"),
    Line("optimizer-8", "optimizer_bits", _always(8), "compressed", "the optimizer's moments in {} bits"),
    Line("ema-16", "ema_bits", _always(16), "compressed", "the average of the weights in bfloat16"),
    Line("weights-24", "weight_bits", _always(24), "compressed", "weights in bfloat16 and 8 bits beside the optimizer"),
    Line("weights-16", "weight_bits", _always(16), "compressed", "weights in bfloat16, rounded stochastically"),
    Line("frozen-16", "frozen_bits", _always(16), "compressed", "what is not learned in bfloat16"),
    Line("frozen-8", "frozen_bits", _always(8), "compressed", "what is not learned in int8"),
    Line("frozen-4", "frozen_bits", _always(4), "compressed", "what is not learned in NF4"),
)


def rungs(
    recipe: Recipe, *, chosen: Sequence[str] = (), numerics: str = CLASSES[-1]
) -> tuple[list[Rung], dict[str, str]]:
    """The rungs of this recipe up to the class `numerics`, and name to reason for those that are left out.

    With `chosen`, the first one and those: the levers between them stay as they were.
    """
    known = [FIRST, *(line.name for line in LINES)]
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise RecipeError(f"--rungs {unknown[0]} is no rung of a ladder: there are {', '.join(known)}")
    if numerics not in CLASSES:
        raise RecipeError(f"--numerics {numerics} is not one of {', '.join(CLASSES)}")
    levers = {**PLAIN, "micro_batch": recipe.effective_batch}
    ladder = [Rung(FIRST, "", "exact", "float32, the whole batch at once, saves beside training", levers)]
    left_out: dict[str, str] = {}
    for line in LINES:
        if chosen and line.name not in chosen:
            continue
        try:
            value = _value(line, recipe, levers, numerics)
        except LeftOut as reason:
            left_out[line.name] = str(reason)
            continue
        levers = {**levers, line.lever: value}
        ladder.append(Rung(line.name, line.lever, line.numerics, line.words.format(value), levers))
    return ladder, left_out


def _value(line: Line, recipe: Recipe, levers: Levers, numerics: str) -> Any:
    if CLASSES.index(line.numerics) > CLASSES.index(numerics):  # type: ignore[arg-type]
        raise LeftOut(f"--numerics {numerics} does not allow it: it is {line.numerics}")
    if line.lever in OFF and line.lever not in recipe.supported_levers:
        if line.lever == "ema_bits":
            raise LeftOut("the recipe keeps no average of its weights (--ema-decay)")
        raise LeftOut("the recipe's loss makes no use of this lever")
    return line.value(recipe, levers)
