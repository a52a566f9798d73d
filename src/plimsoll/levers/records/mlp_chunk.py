"""Number of positions that go through the feed-forward part at a time: see `levers/mlp_chunk.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll.levers.lever import LeftOut, Lever, Problem, Rates, Rung, Support, Values

RECOMPUTES = ("block", "offload")
"""Values of `remat` with which chunks save memory: blocks are computed again in the backward pass."""

CHUNKS = (2_048, 512)
"""Positions per chunk: 2,048 keep a GPU busy, 512 save the most bytes."""


def chunks_of(length: int) -> tuple[int, ...]:
    """Returns the chunk sizes worth trying for `length` positions: those of at most half the length."""
    return tuple(chunk for chunk in CHUNKS if 2 * chunk <= length)


def _worth_trying(problem: Problem, _rates: Rates) -> list[int]:
    return [0, *problem.mlp_chunks]


def _refused(problem: Problem, _rates: Rates, value: int) -> str | None:
    remat = problem.pins.get("remat", "block")
    if not value or remat in RECOMPUTES:
        return None
    return (
        f"is refused with --remat {remat}, which keeps activations: the backward pass computes each chunk again. Use"
        " --remat block, or leave it out"
    )


def _goes_with(levers: Values, _tried: Mapping[str, Sequence[Any]]) -> bool:
    return not levers["mlp_chunk"] or levers["remat"] in RECOMPUTES


def _largest(problem: Problem, levers: Values) -> int:
    if not problem.mlp_chunks:
        raise LeftOut("its sequences are short: the recipe names no chunks worth trying (`mlp_chunks`)")
    if levers["remat"] not in RECOMPUTES:
        raise LeftOut("chunks are computed again in the backward pass: add remat to --rungs")
    return max(problem.mlp_chunks)


MLP_CHUNK = Lever(
    name="mlp_chunk",
    type=int,
    help="Positions that go through the feed-forward part of a block at a time; 0 for all.",
    plain=0,
    supports=(Support("mlp_chunk"),),
    worth_trying=_worth_trying,
    refused=_refused,
    goes_with=_goes_with,
    rungs=(Rung(name="mlp-chunk", words="the feed-forward part of {} positions at a time", value=_largest),),
    words="feed-forward in chunks of {value}",
    label="feed-forward part",
    row="{value:,} positions at a time",
)
