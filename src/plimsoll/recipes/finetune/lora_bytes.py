"""What adapters save of a plan's bytes, by arithmetic on the model's shape, without JAX.

`recipe` is a `recipe.Finetune`, which imports this file.
"""

from __future__ import annotations

import math
import re
from typing import Any

from plimsoll.levers.lora_targets import patterns_of
from plimsoll.models.pretrained.shape import PretrainedShape
from plimsoll.planned import Planned
from plimsoll.types import Storage
from plimsoll.units import format_bytes

Leaves = dict[str, tuple[int, ...]]
"""Path of a leaf, like `blocks/query/kernel`, to its shape; a kernel's is (layers, in, out)."""

GROUP = 64
"""Moments that share a scale."""
SMALLEST = 4096
"""Elements of a leaf below which its weights and moments stay in float32."""


def adapted(shape: PretrainedShape, targets: str) -> Leaves:
    """Returns the kernels that `--lora-targets` names."""
    patterns = patterns_of(targets)
    return {
        path: sides
        for path, sides in shape.leaves().items()
        if len(sides) >= 2 and any(re.fullmatch(pattern, path) for pattern in patterns)
    }


def adapters(recipe: Any) -> Leaves:
    """Returns the two matrices of every adapter."""
    matrices: Leaves = {}
    for path, (*lead, inner, cols) in adapted(recipe.shape, recipe.lora_targets).items():
        matrices[f"{path}/a"] = (*lead, inner, recipe.lora_rank)
        matrices[f"{path}/b"] = (*lead, recipe.lora_rank, cols)
    return matrices


def optimizer_bytes(recipe: Any, storage: Storage) -> int:
    """Returns the bytes of the optimizer's state for the adapters, by the rules of `optimizers.adamw8.bits_of`."""
    counts = 8 if storage.updates_whole else 4  # optax counts twice, ours once
    return counts + sum(_moment_bytes(math.prod(sides), storage) for sides in adapters(recipe).values())


def _moment_bytes(elements: int, storage: Storage) -> int:
    """Returns the bytes of a matrix's two moments, and of the low bits of its weights where they have 24."""
    if elements < SMALLEST or elements % GROUP:
        return 2 * 4 * elements

    low_bits = elements if storage.weight_bits == 24 else 0
    if storage.optimizer_bits == 32:
        return 2 * 4 * elements + low_bits
    scales = 4 * elements // GROUP
    return 2 * (elements + scales) + low_bits


def saved_by_adapters(recipe: Any, planned: Planned) -> str:
    """Returns a sentence on the bytes that adapters save under a plan, and on those that they do not."""
    plan = planned.plan

    # What shrinks: a float32 gradient of what is learned, its sum over micro-batches, and the optimizer's state.
    learned = sum(map(math.prod, adapters(recipe).values()))
    gradient = 4 * learned
    optimizer = optimizer_bytes(recipe, plan.storage)
    whole = recipe.shape.parameters() * (gradient + optimizer) / learned
    text = f"gradient and state {format_bytes(whole)} -> {format_bytes(gradient + optimizer)}; activations stay"

    # What stays: temporaries of the step, where the peak is in a phase that has them.
    temporaries = planned.ledger.predicted.get("step temporaries", 0)
    if temporaries:
        gradients = 2 * gradient if plan.accumulation > 1 else gradient
        text += f": {format_bytes(max(0.0, temporaries - gradients))}"

    # The largest of them: logits in float32, of all tokens or of a chunk.
    tokens = plan.micro_batch * recipe.seq_len
    logits = format_bytes(4 * tokens * recipe.shape.vocab)
    if 0 < plan.loss_chunk < tokens:
        return f"{text}; without a chunked loss {logits} of logits"
    return f"{text}, {logits} of logits among them"
