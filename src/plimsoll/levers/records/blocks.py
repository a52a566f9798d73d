"""Levers that choose which parts of blocks, logits and scores a step stores, and which it computes again."""

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
    """Returns the values to try. With frozen layers in bfloat16 on a CPU, "none" is the slowest, and is left out.

    Frozen layers run as a loop. In each layer XLA for CPU converts the whole stack of stored activations to float32
    and back: a step of a model with 135M weights took 8.0 s, and with "dots" 6.2 s in half the memory (notes, "A scan
    on a CPU keeps bits").
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
            lacking="the loss of {recipe} does not support offloading. Use --remat block",
        ),
    ),
    needs=lambda value: {"none": (), "offload": ("remat", "remat_offload")}.get(value, ("remat",)),
    worth_trying=_worth_recomputing,
    refused=_nowhere_to_go,
    sets_apart=("cpu",),  # XLA for CPU holds float32 copies of bfloat16 activations that "none" keeps
    rungs=(Rung(name="remat", words="blocks are computed again in the backward pass", value="block"),),
    plain_words="remat none",
    label="rematerialisation",
    plain_row="none",
)


MOST_UNROLLED = 24
"""Most layers that the planner unrolls. For more, compiling (about 0.3 s a layer) takes longer than unrolling saves."""


def _unrolled_beside(levers: Values, tried: Mapping[str, Sequence[Any]]) -> bool:
    """Returns False if another value of `unroll` is always better with these levers.

    A loop over layers costs time and saves no bytes if it keeps all activations, or updates layer by layer. With
    offloaded state a loop is better, since only a loop fetches one layer at a time.
    """
    first, *others = tried["unroll"]
    if levers["offload"] != "none" and others:
        return levers["unroll"] != first
    return levers["unroll"] == first or (levers["remat"] != "none" and not levers["layerwise"])


UNROLL = Lever(
    name="unroll",
    type=int,
    help=(
        "Most layers that are compiled one after another instead of as a loop: faster steps, longer compiles. With 0"
        " layers are always a loop. On a CPU they are a loop unless --remat is none."
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
"""Tokens per chunk that keep a GPU busy. The chunks that recipes name fit a CPU's cache. On a GPU they would make some
hundred small products per step, each of which reads and writes the gradient of the head's weights."""


IN_CACHE = 0.8
"""Smallest ratio of measured to predicted time of a step with a chunked loss on a CPU, whose cache holds a chunk
(notes)."""


def _chunks_of_the_loss(problem: Problem, _rates: Rates) -> list[int]:
    chunks = CHUNKS_ON_A_CARD if problem.loss_chunks and problem.platform == "cuda" else problem.loss_chunks
    whole = problem.loss_whole or not chunks
    return [0, *chunks] if whole else list(chunks)


def _with_small_logits(levers: Values, tried: Mapping[str, Sequence[Any]]) -> bool:
    """Returns False for `remat` with all logits in memory, which saves little, except on a GPU.

    If the only chunks to try are those for a GPU, or there are none, it returns True.
    """
    others = set(tried["loss_chunk"]) - {0, *CHUNKS_ON_A_CARD}
    return levers["remat"] == "none" or bool(levers["loss_chunk"]) or not others


def _largest_chunk(problem: Problem, levers: Values) -> int:
    """Returns the largest of the recipe's chunks that has fewer tokens than a micro-batch.

    Smaller chunks than the recipe's are never used: in a micro-batch of 256 tokens, a chunk of 64 took 11 MiB more
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
    """Returns True if the chunk sizes `one` and `other` (0 for no chunks) both hold all rows of a micro-batch."""
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
"""Positions per block: 1,024 keep a GPU busy, 256 fit a CPU's cache. A GPU without its own attention
kernel takes 1.7 times as long in blocks of 256 at 32,768 positions (notes, "Attention in blocks on a card")."""


def attention_blocks_of(length: int) -> tuple[int, ...]:
    """Returns the block sizes worth trying for attention over `length` positions: those below half the length.

    In shorter sequences the scores are small beside other activations (notes, "Attention in blocks").
    """
    return tuple(block for block in ATTENTION_BLOCKS if 2 * block < length)


def _blocks_of_attention(problem: Problem, _rates: Rates) -> list[int]:
    """Returns the block sizes to try, the fastest first: on a GPU or TPU 0, which means the chip's own kernel."""
    if not problem.attention_chunks:
        return [0]
    smallest = min(problem.attention_chunks)
    if problem.platform == "cpu":
        return [smallest]
    if problem.platform == "tpu":
        return [0, smallest]
    return [0, *problem.attention_chunks]


WIDEST_CUDNN_HEAD = 128
"""Most columns of a head for which JAX lets cuDNN compute the gradient of attention on every card (jax 0.10.2,
jax/_src/cudnn/fused_attention_stablehlo.py)."""


def without_cudnn(*, precision: str, chunk: int, width: int) -> str:
    """Returns the reason why cuDNN's attention, which stores no scores, cannot be used on a GPU; empty if it can.

    float16 is excluded, although cuDNN accepts it: it is for cards without bfloat16 (compute capability below 8.0).
    Such cards have no such kernel, and compiling would succeed, but the run would fail.
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
