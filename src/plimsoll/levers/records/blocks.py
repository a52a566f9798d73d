"""What a step keeps of blocks, logits and scores for its backward pass, and what it computes again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll.levers.lever import LeftOut, Lever, Problem, Rates, Rung, Support, Values
from plimsoll.levers.records.offload import no_host
from plimsoll.types import Remat


def _nowhere_to_go(problem: Problem, rates: Rates, value: str) -> str | None:
    reason = no_host(problem, rates) if value == "offload" else None
    return None if reason is None else f"is refused {reason}"


def _worth_recomputing(problem: Problem, _rates: Rates) -> list[str]:
    """Returns the values to try: not "none" for frozen layers in bfloat16 on a CPU, where it is the slowest.

    Frozen layers are a loop, and XLA turns what it keeps to float32 and back there, the whole stack in each layer: a
    step of 135M took 8.0 s for 6.2 with "dots", in twice the memory (notes, "A scan on a CPU keeps bits").
    """
    frozen_on_cpu = problem.platform == "cpu" and "frozen_bits" in problem.supported
    in_float32 = problem.numerics == "exact" or problem.pins.get("precision") == "float32"
    return [value for value in REMAT.values if value != "none" or not frozen_on_cpu or in_float32]


REMAT = Lever(
    name="remat",
    type=Remat,
    help=(
        "Parts that the backward pass computes again (rematerialisation): nothing; all but matrix products (dots);"
        " whole blocks; or whole blocks whose inputs are kept in the host's memory (offload)."
    ),
    plain="none",
    supports=(
        Support("remat"),
        Support(
            "remat_offload",
            lacking="the loss of {recipe} does not say what is to lie on the host. Use --remat block",
        ),
    ),
    needs=lambda value: {"none": (), "offload": ("remat", "remat_offload")}.get(value, ("remat",)),
    worth_trying=_worth_recomputing,
    refused=_nowhere_to_go,
    sets_apart=("cpu",),  # which holds float32 copies beside what "none" keeps in bfloat16
    rungs=(Rung(name="remat", words="blocks are computed again in the backward pass", value="block"),),
    plain_words="remat none",
    label="rematerialisation",
    plain_row="none",
)


MOST_UNROLLED = 24
"""Layers beyond which compile time (about 0.3 s a layer) outweighs what unrolling saves."""


def _unrolled_beside(levers: Values, tried: Mapping[str, Sequence[Any]]) -> bool:
    """Returns False where the other way is always better.

    A loop that keeps everything, or that updates as it goes back, loses time and saves no bytes. Beside what lies on
    the host only a loop holds a piece of it at a time.
    """
    first, *others = tried["unroll"]
    if levers["offload"] != "none" and others:
        return levers["unroll"] != first
    return levers["unroll"] == first or (levers["remat"] != "none" and not levers["layerwise"])


UNROLL = Lever(
    name="unroll",
    type=int,
    help=(
        "Most layers that are compiled one after another instead of as a loop: faster steps, longer compiles. 0 always"
        " takes a loop. On a CPU layers are a loop wherever --remat recomputes."
    ),
    plain=MOST_UNROLLED,
    supports=(Support("unroll"),),
    worth_trying=lambda problem, rates: [MOST_UNROLLED, 0] if problem.platform == "cuda" else [MOST_UNROLLED],
    refused=lambda problem, rates, value: (
        f"would change nothing on {problem.chip}: layers are a loop on a TPU. Leave it out"
        if problem.platform == "tpu" and value != MOST_UNROLLED
        else None
    ),
    goes_with=_unrolled_beside,
    words="up to {value} layers unrolled",
    label="layers unrolled",
    row="up to {value}",
)


CHUNKS_ON_A_CARD = (8_192, 2_048)
"""Tokens of a chunk that a GPU fills itself with. Recipes name chunks that fit a CPU's cache: each of those would be a
small product, and read and write the gradient of the head's weights, some hundred times a step."""


IN_CACHE = 0.8
"""Share of the time that a step with a chunked loss may take on a CPU, whose cache holds a chunk (notes)."""


def _chunks_of_the_loss(problem: Problem, _rates: Rates) -> list[int]:
    chunks = CHUNKS_ON_A_CARD if problem.loss_chunks and problem.platform == "cuda" else problem.loss_chunks
    whole = problem.loss_whole or not chunks
    return [0, *chunks] if whole else list(chunks)


def _with_small_logits(levers: Values, tried: Mapping[str, Sequence[Any]]) -> bool:
    """Returns False where blocks are recomputed while all logits are kept: that saves little, but on a GPU."""
    others = set(tried["loss_chunk"]) - {0, *CHUNKS_ON_A_CARD}
    return levers["remat"] == "none" or bool(levers["loss_chunk"]) or not others


def _largest_chunk(problem: Problem, levers: Values) -> int:
    """Returns the largest of the recipe's chunks that a micro-batch has more tokens than.

    None is made up for smaller micro-batches: a chunk of 64, where 256 tokens were left, took 11 MiB more and not less
    (notes, "The ladder").
    """
    chunks = sorted(problem.loss_chunks)
    if not chunks:
        raise LeftOut("the recipe names no chunks worth trying (`loss_chunks`)")
    if problem.loss_rows is None:
        return chunks[0]
    tokens = levers["micro_batch"] * problem.loss_rows
    smaller = [chunk for chunk in chunks if chunk < tokens]
    if not smaller:
        raise LeftOut(f"a micro-batch has {tokens:,} tokens, no more than its smallest chunk of {chunks[0]:,}")
    return smaller[-1]


def _both_whole(problem: Problem, one: int, other: int, micro_batch: int) -> bool:
    """Returns whether both have all rows of a micro-batch in one piece."""
    rows = None if problem.loss_rows is None else micro_batch // problem.devices * problem.loss_rows
    return rows is not None and all(not chunk or chunk >= rows for chunk in (one, other))


LOSS_CHUNK = Lever(
    name="loss_chunk",
    type=int,
    help="Tokens of each device whose logits are in memory at a time; 0 for all of a micro-batch.",
    plain=0,
    supports=(Support("loss_chunk"),),
    worth_trying=_chunks_of_the_loss,
    goes_with=_with_small_logits,
    same_step=_both_whole,
    may_gain=lambda value, problem: IN_CACHE if value and problem.platform == "cpu" else 1.0,
    rungs=(Rung(name="loss-chunk", words="the logits of {} tokens at a time", value=_largest_chunk),),
    plain_words="loss whole",
    row="{value:,} tokens",
    plain_row="off, all logits at once",
)


ATTENTION_BLOCKS = (1_024, 256)
"""Positions of a block that fill a card, and of one that fits a CPU's cache. A card without an attention kernel of its
own takes 1.7 times as long in blocks of 256 at 32,768 positions (notes, "Attention in blocks on a card")."""


def attention_blocks_of(length: int) -> tuple[int, ...]:
    """Returns the blocks of attention worth trying for a sequence of so many positions: those of less than half of it.

    Scores of fewer positions are small beside the rest (notes, "Attention in blocks").
    """
    return tuple(block for block in ATTENTION_BLOCKS if 2 * block < length)


def _blocks_of_attention(problem: Problem, _rates: Rates) -> list[int]:
    """Returns blocks alone on a CPU, where they are faster, too; a chip's own kernel is faster than blocks."""
    if not problem.attention_chunks:
        return [0]
    smallest = min(problem.attention_chunks)
    if problem.platform == "cpu":
        return [smallest]
    if problem.platform == "tpu":
        return [0, smallest]
    return [0, *problem.attention_chunks]


WIDEST_CUDNN_HEAD = 128
"""Columns of a head up to which JAX gives cuDNN the gradient of attention on every card (jax 0.10.2,
jax/_src/cudnn/fused_attention_stablehlo.py); a multiple of 8."""


def without_cudnn(*, precision: str, chunk: int, width: int) -> str:
    """Returns why attention on a GPU is not cuDNN's, whose scores are never in memory; empty where it is.

    Not in float16, although cuDNN would take it: float16 is for cards without bfloat16 (compute capability below 8.0),
    and those have no such kernel, which the compiler does not say: the run would.
    """
    if chunk:
        return f"it goes in blocks of {chunk:,} positions (--attention-chunk {chunk})"
    if precision != "bfloat16":
        return f"cuDNN's is in bfloat16 here, and products are in {precision}"
    if width % 8:
        return f"cuDNN's takes heads whose width is a multiple of 8, and they have {width} columns"
    if width > WIDEST_CUDNN_HEAD:
        return f"cuDNN's takes heads of up to {WIDEST_CUDNN_HEAD} columns, and they have {width}"
    return ""


def _smallest_block(problem: Problem, _levers: Values) -> int:
    if not problem.attention_chunks:
        raise LeftOut("its scores are small: the recipe names no blocks worth trying (`attention_chunks`)")
    return min(problem.attention_chunks)


ATTENTION_CHUNK = Lever(
    name="attention_chunk",
    type=int,
    help="Positions of a block of attention scores; 0 for the fastest form, which may hold all scores at once.",
    plain=0,
    supports=(Support("attention_chunk"),),
    worth_trying=_blocks_of_attention,
    rungs=(Rung(name="attention", words="attention in blocks of {} positions", value=_smallest_block),),
    words="attention in blocks of {value}",
    label="attention",
    row="in blocks of {value:,} positions",
)
