"""Registry of all levers, by name. Imports no JAX.

A new lever needs one file with its code, its bytes and its record (two files if the code imports JAX), and an entry
here. A user's recipe file may add a lever with `register`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll.levers.lever import CLASSES, Lever, Rung
from plimsoll.levers.records.activations import ACTIVATIONS
from plimsoll.levers.records.batch import ASYNC_SAVE, FSDP, MICRO_BATCH, PREFETCHED
from plimsoll.levers.records.blocks import ATTENTION_CHUNK, LOSS_CHUNK, REMAT, UNROLL
from plimsoll.levers.records.deterministic import DETERMINISTIC
from plimsoll.levers.records.layerwise import LAYERWISE
from plimsoll.levers.records.mlp_chunk import MLP_CHUNK
from plimsoll.levers.records.offload import OFFLOAD
from plimsoll.levers.records.precision import PRECISION
from plimsoll.levers.records.storage import EMA_BITS, EMBEDDING_BITS, FROZEN_BITS, OPTIMIZER_BITS, WEIGHT_BITS
from plimsoll.types import Numerics

LEVERS: dict[str, Lever] = {
    lever.name: lever
    for lever in (
        MICRO_BATCH, REMAT, UNROLL, LOSS_CHUNK, ATTENTION_CHUNK, MLP_CHUNK, LAYERWISE, PRECISION, ACTIVATIONS,
        DETERMINISTIC, OPTIMIZER_BITS, WEIGHT_BITS, FROZEN_BITS, EMBEDDING_BITS, EMA_BITS, OFFLOAD, FSDP,
        PREFETCHED, ASYNC_SAVE,
    )
}  # fmt: skip
"""Levers by name, in the order in which options, texts and tables list them."""

SEARCH_ORDER = (
    "layerwise", "precision", "fsdp", "offload", "unroll", "remat", "activations", "loss_chunk", "attention_chunk",
    "mlp_chunk",
)  # fmt: skip
"""Order of the levers in the search, which changes later levers before earlier ones. `layerwise` is changed last: it
costs arithmetic, with gradient clipping 7/4 of the layers' arithmetic. Levers not named here come after these."""
CHAIN_ORDER = ("optimizer_bits", "frozen_bits", "ema_bits", "weight_bits")
"""Order in which the search changes chained levers: the optimizer state first, because its bits change the results of
training least. Levers not named here come last."""
RUNG_ORDER = (
    "save", "micro-batch", "loss-chunk", "micro-batch-1", "attention", "remat", "mlp-chunk", "layerwise", "prefetch",
    "offload", "bfloat16", "activations-16",
    "optimizer-8", "ema-16", "weights-24", "weights-16", "frozen-16", "frozen-8", "frozen-4",
    "embedding-8", "embedding-4",
)  # fmt: skip
"""Order of the rungs (runs of `plimsoll ladder`) with the same numerics. Rungs not named here come after these."""


def register(lever: Lever) -> None:
    """Adds a lever to plans, options, search, ladder and tables.

    Raises:
        ValueError: The name is taken, `by_itself` is set, or `plain` is not an allowed value.
    """
    if lever.name in LEVERS:
        raise ValueError(f"there is a lever {lever.name} already")
    if lever.by_itself:
        raise ValueError(f"nothing would choose {lever.name}: leave out `by_itself`, so that the search combines it")
    if not lever.allows(lever.plain):
        raise ValueError(f"{lever.plain!r} is no value of {lever.name}")
    LEVERS[lever.name] = lever


def searched() -> list[Lever]:
    """Returns the levers that the planner combines, in SEARCH_ORDER."""
    free = [lever for lever in LEVERS.values() if not lever.by_itself and not lever.chained]
    return _in_order(free, SEARCH_ORDER)


def chained() -> list[Lever]:
    """Returns the chained levers in order. The search changes each after all before it have their smallest value."""
    return _in_order([lever for lever in LEVERS.values() if lever.chained], CHAIN_ORDER)


def rungs() -> list[tuple[Lever, Rung]]:
    """Returns every rung (run of `plimsoll ladder`) with its lever, sorted by numerics: exact, mixed, compressed."""
    pairs = [(lever, rung) for lever in LEVERS.values() for rung in lever.rungs]
    place = {name: number for number, name in enumerate(RUNG_ORDER)}
    return sorted(pairs, key=lambda pair: (CLASSES.index(pair[0].touches), place.get(pair[1].name, len(place))))


def numerics(levers: Mapping[str, Any]) -> Numerics:
    """Returns the numerics of these levers together: the one furthest from exact among their values."""
    classes = [lever.numerics(levers[name]) for name, lever in LEVERS.items() if name in levers]
    return CLASSES[max((CLASSES.index(numerics) for numerics in classes), default=0)]


def plain() -> dict[str, Any]:
    """Returns the plain value (off) of every lever but the micro-batch, whose plain value is the whole batch."""
    return {name: lever.plain for name, lever in LEVERS.items() if lever.plain is not None}


def in_words(levers: Mapping[str, Any]) -> str:
    """Returns a short text for levers, like `remat none, loss whole, float32`."""
    words = (lever.described(levers[name]) for name, lever in LEVERS.items() if name in levers)
    return ", ".join(word for word in words if word)


def _in_order(levers: list[Lever], order: tuple[str, ...]) -> list[Lever]:
    place = {name: number for number, name in enumerate(order)}
    return sorted(levers, key=lambda lever: place.get(lever.name, len(place)))
