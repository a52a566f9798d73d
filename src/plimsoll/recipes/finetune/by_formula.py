"""Temporaries of a fine-tuning step on an NVIDIA GPU by a formula, without JAX and without a compiler.

The state is exact (state.py). The rest has two moments at which most is alive: the loss, with its logits, and the
backward pass through a block, with the gradients. Factors and bounds are fitted to steps that NVIDIA's compiler made
(notes, "The answer by formula"; `python benchmarks/finetune_formula.py` measures them). `recipe` is a
`recipe.Finetune`, which imports this file.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from plimsoll.levers.cudnn_workspace import Call, pieces, window_is_dear, workspace_bytes
from plimsoll.levers.records.blocks import without_cudnn
from plimsoll.models.pretrained.shape import PretrainedShape
from plimsoll.planned import Plan, Planned
from plimsoll.recipes.finetune.state import learned, static_bytes
from plimsoll.units import MIB, format_bytes

LOGITS = {"bfloat16": 1.5, "tf32": 2.0, "float32": 2.0, "float16": 1.5}
"""Bytes at the loss over those of its float32 logits, by the type of products: what is rounded for them, too."""
HIDDEN = 3.2
"""Copies of the hidden states at the loss: they, their gradient, and what it is summed in."""
QUERIES, KEYS = 9.3, 11.5
"""Copies of queries, and of keys, in the backward pass of attention."""
IN_BLOCKS = 0.85
"""Share of these where `attention_chunk` positions go through at a time."""
FED = 6
"""Copies of the inner columns in that of the feed-forward part (`levers.mlp_chunk.mlp_chunk_bytes`)."""
SCORES, SCORES_KEPT = 3.2, 1.5
"""Copies of the scores of a block of queries, where attention has no kernel; and of all of them, where blocks keep what
they compute."""
TILES = 48 * MIB
"""Kernels that are widened a tile at a time, and what products work in."""
LOW, HIGH = 0.85, 1.1
"""Compiled over computed bytes, where blocks are computed again."""
ROUGH = 32 * MIB
"""By how much less it may be besides: of small steps, what products work in is most."""
KEPT_LOW, KEPT_HIGH = 0.7, 1.6
"""The same of what is kept of blocks that are not."""


class Sizes(NamedTuple):
    """Bytes of one micro-batch's arrays."""

    hidden: float
    queries: float
    keys: float
    inner: float
    """Of one of gate and up, of the positions that go through at a time."""
    logits: float
    """Of the rows that exist at a time, in float32."""
    scores: float
    """Of the largest block of queries, in float32; 0 where attention has a kernel, or goes in blocks."""
    workspace: float
    """Of cuDNN's backward pass, and what it adds up where it goes in blocks."""
    gradient: float
    kept: float
    """Of all layers, for the backward pass, on the device."""
    copied: float
    """Weights of a layer that a loop over layers copies."""


def temporaries(recipe: Any, plan: Plan) -> tuple[float, float, float]:
    """Returns the bytes beyond the state of a step on one GPU: least, likeliest and most."""
    of = sizes(recipe, plan)
    several = of.gradient if plan.accumulation > 1 else 0.0  # the sum, beside the gradient of a micro-batch
    loss = LOGITS[plan.precision] * of.logits + HIDDEN * of.hidden
    attended = QUERIES * of.queries + KEYS * of.keys + SCORES * of.scores
    attended *= IN_BLOCKS if plan.attention_chunk else 1.0
    attended += of.workspace
    block = TILES + max(attended, of.copied + 4 * of.hidden, FED * of.inner + 3 * of.hidden)
    both = several + of.gradient
    where_logits_were = of.gradient <= loss  # else the gradient lies beside them
    behind = both + (block if where_logits_were else max(block, loss))
    likely = of.kept + max(several + loss, behind)
    most = of.kept + both + max(block, loss)
    low, high = (LOW, HIGH) if plan.remat in ("block", "offload") else (KEPT_LOW, KEPT_HIGH)
    return max(0.0, low * likely - ROUGH), likely, high * most


def saved_by_adapters(recipe: Any, planned: Planned) -> str:
    """Returns what adapters save of this plan's bytes, and what they do not, in a sentence."""
    plan, predicted = planned.plan, planned.ledger.predicted
    of = sizes(recipe, plan)
    optimizer = static_bytes(recipe, plan.storage)["optimizer_bytes"]
    whole = recipe.shape.parameters() * (of.gradient + optimizer) / (of.gradient / 4)
    gradient = of.gradient * (2 if plan.accumulation > 1 else 1)
    text = f"gradient and state {format_bytes(whole)} -> {format_bytes(of.gradient + optimizer)}"
    text += "; activations stay"
    if step := predicted.get("step temporaries", 0):  # else the peak is in a phase that has none
        text += f": {format_bytes(max(0.0, step - gradient))}"
    tokens = plan.micro_batch * recipe.seq_len
    if 0 < plan.loss_chunk < tokens:
        return f"{text}; without a chunked loss {format_bytes(4 * tokens * recipe.shape.vocab)} of logits"
    return f"{text}, {format_bytes(of.logits)} of logits among them"


def sizes(recipe: Any, plan: Plan) -> Sizes:
    """Returns the bytes of the arrays that a micro-batch has."""
    shape, micro = recipe.shape, plan.micro_batch
    itemsize = 2 if plan.levers["activations"] == "bfloat16" else 4
    tokens = micro * recipe.seq_len
    rows = min(plan.loss_chunk or tokens, tokens)
    chunk = min(plan.levers["mlp_chunk"] or recipe.seq_len, recipe.seq_len)
    queries, keys = shape.heads * shape.head_width, shape.key_heads * shape.head_width
    weights = sum(math.prod(sides) for (_, leaf), (_, sides) in shape.block_tensors().items() if leaf == "kernel")
    bits = plan.frozen_bits if recipe.lora_rank else plan.weight_bits
    scores = _scores(shape, plan, recipe.seq_len)
    of_all = 5 / 8 * 4 * scores  # four blocks of queries, each beside the keys up to its end
    kept_scores = SCORES_KEPT * shape.layers * of_all if plan.remat == "none" else 0
    return Sizes(
        hidden=itemsize * tokens * shape.width,
        queries=itemsize * tokens * queries,
        keys=itemsize * tokens * keys,
        inner=itemsize * micro * chunk * shape.inner,
        logits=4 * rows * shape.vocab,
        scores=scores,
        workspace=_workspace(shape, plan, recipe.seq_len),
        gradient=4 * sum(math.prod(sides) for sides in learned(recipe).values()),
        kept=itemsize * tokens * shape.layers * _kept(shape, plan) + kept_scores,
        copied=weights * bits / 8 if bits >= 16 else 0,
    )


def _kept(shape: PretrainedShape, plan: Plan) -> int:
    """Returns the numbers of a token that a layer keeps."""
    queries, keys = shape.heads * shape.head_width, shape.key_heads * shape.head_width
    products = queries + 2 * keys + 2 * shape.inner + 2 * shape.width
    return {
        "offload": 0,
        "block": shape.width,
        "dots": products,
        "none": products + queries + (3 if shape.form.gemma else 1) * shape.inner + 2 * shape.width,
    }[plan.remat]


def _workspace(shape: PretrainedShape, plan: Plan, length: int) -> float:
    """Returns the bytes of cuDNN's backward pass beside its arguments and results (levers/attention_cudnn.py)."""
    if shape.score_cap or without_cudnn(precision=plan.precision, chunk=plan.attention_chunk, width=shape.head_width):
        return 0.0
    queries, keys = ((plan.micro_batch, length, heads, shape.head_width) for heads in (shape.heads, shape.key_heads))
    call = Call(1.0, deterministic=plan.deterministic)
    if shape.windowed and shape.window < length and window_is_dear(queries, call._replace(window=1)):
        return 0.0
    block, examples = pieces(queries, keys, call)
    at_once = workspace_bytes((examples, block or length, *queries[2:]), (examples, block or length), call)
    sums = 8 * plan.micro_batch * length * shape.key_heads * shape.head_width
    return at_once + (sums if block else 0)


def _scores(shape: PretrainedShape, plan: Plan, length: int) -> float:
    """Returns the bytes of the scores that exist at a time: a quarter of the queries beside all keys."""
    if plan.attention_chunk or shape.windowed:
        return 0.0
    if not without_cudnn(precision=plan.precision, chunk=0, width=shape.head_width):
        return 0.0
    return 4 * plan.micro_batch * shape.heads * length * max(64, length / 4)
