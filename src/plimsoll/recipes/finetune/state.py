"""Bytes of a fine-tuning state, by arithmetic on the model's shape: what JAX would say of it, without JAX.

The rules are those of `levers.frozen.stored`, `optimizers.adamw8.bits_of`, `levers.ema` and `levers.offload`, which
decide leaf by leaf; `tests/recipes/finetune/test_state.py` holds all of it to the real state. `recipe` is a
`recipe.Finetune`, which imports this file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from plimsoll.levers.lora_targets import patterns_of
from plimsoll.models.pretrained.shape import PretrainedShape
from plimsoll.types import NORMS_AND_BIASES, Storage

Leaves = dict[str, tuple[int, ...]]
"""Path of a leaf, like `blocks/query/kernel`, to its shape; a kernel's is (layers, in, out)."""

GROUP = 64
"""Weights that share a scale, of frozen kernels and of moments."""
SMALLEST, SMALLEST_MOVED = 4096, 2**14
"""Elements below which a leaf is kept as it is, and below which it stays on the device."""
EMBEDDINGS = frozenset({"embedding", "head"})
"""Names of leaves that have 16 bits at least where they are frozen, and moments in float32 where they are learned."""
ROW_BYTES = 5 * 4
"""Bytes of a token in a batch: id, label, whether it counts, document, position."""
OTHER_BYTES = 4 + 8
"""Bytes of a step's number and of its key."""


class Array(NamedTuple):
    """An array of the state."""

    elements: int
    itemsize: int
    axes: int

    @property
    def bytes(self) -> int:
        return self.elements * self.itemsize


def adapted(shape: PretrainedShape, targets: str) -> Leaves:
    """Returns the kernels that `--lora-targets` names."""
    patterns = patterns_of(targets)
    return {
        path: sides
        for path, sides in shape.leaves().items()
        if len(sides) >= 2 and any(re.fullmatch(pattern, path) for pattern in patterns)
    }


def learned(recipe: Any) -> Leaves:
    """Returns what takes a gradient: the two matrices of every adapter, or the whole model."""
    if not recipe.lora_rank:
        return recipe.shape.leaves()
    found: Leaves = {}
    for path, (*lead, inner, cols) in adapted(recipe.shape, recipe.lora_targets).items():
        found |= {f"{path}/a": (*lead, inner, recipe.lora_rank), f"{path}/b": (*lead, recipe.lora_rank, cols)}
    return found


def static_bytes(recipe: Any, storage: Storage) -> dict[str, Any]:
    """Returns the fields of `planner.types.Static`, of one device that holds the whole state."""
    trainable = learned(recipe)
    frozen = recipe.shape.leaves() if recipe.lora_rank else {}
    given = [part for path, sides in frozen.items() for part in _frozen(path, sides, storage)]
    weights = [
        Array(math.prod(sides), _bits(path, sides, storage)[1] // 8, len(sides)) for path, sides in trainable.items()
    ]
    moments = [part for leaf in trainable.items() for part in _moments(*leaf, storage)]
    average = [_average(sides, storage) for sides in trainable.values()] if recipe.ema_decay else []
    counts = 8 if storage.updates_whole else 4  # optax counts twice, ours once
    parameters, optimizer, ema = _sum([*given, *weights]), _sum(moments) + counts, _sum(average)
    return {
        "parameters": sum(map(math.prod, [*frozen.values(), *trainable.values()])),
        "parameter_bytes": parameters,
        "optimizer_bytes": optimizer,
        "other_bytes": OTHER_BYTES,
        "ema_bytes": ema,
        "largest_leaf_bytes": max(part.bytes for part in (*given, *weights, *moments, *average)),
        "batch_bytes": ROW_BYTES * recipe.seq_len * recipe.effective_batch,
        "whole_state_bytes": parameters + optimizer + ema + OTHER_BYTES,
        "given_bytes": _sum(given),
        "initial_bytes": max(part.bytes for part in (*given, *weights))
        + _sum(part for part in weights if part.itemsize == 2),
        "movable": {
            "optimizer": _sum(part for part in moments if _moves(part) and part.itemsize == 4),
            "ema": _sum(part for part in average if _moves(part) and part.itemsize == 4),
            "frozen": _sum(part for part in given if _moves(part) and part.axes >= 3),
        },
    }


def _sum(parts: Iterable[Array]) -> int:
    return sum(part.bytes for part in parts)


def _moves(part: Array) -> bool:
    return part.elements >= SMALLEST_MOVED


def _frozen(path: str, sides: tuple[int, ...], storage: Storage) -> list[Array]:
    """Returns the arrays in which a frozen leaf is kept; a packed embedding is the transpose of the table."""
    words, elements, bits = set(path.split("/")), math.prod(sides), storage.frozen_bits
    if words & EMBEDDINGS and storage.embedding_bits < 16:
        return _packed(sides[::-1] if "embedding" in words else sides, storage.embedding_bits)
    if bits == 32 or elements < SMALLEST or words & NORMS_AND_BIASES:
        return [Array(elements, 4, len(sides))]
    if bits == 16 or words & EMBEDDINGS or len(sides) < 2:
        return [Array(elements, 2, len(sides))]
    return _packed(sides, bits)


def _packed(sides: tuple[int, ...], bits: int) -> list[Array]:
    *lead, rows, cols = sides
    groups = math.prod(lead) * -(-rows // GROUP) * cols
    return [Array(groups * GROUP * bits // 8, 1, len(sides)), Array(groups, 2, len(sides))]


def _bits(path: str, sides: tuple[int, ...], storage: Storage) -> tuple[int, int]:
    """Returns the bits of a learned leaf's moments and weights; 24 of a weight are 16 and a rest."""
    words, elements = set(path.split("/")), math.prod(sides)
    if elements < SMALLEST or elements % GROUP or len(sides) < 2 or words & NORMS_AND_BIASES:
        return 32, 32
    return 32 if words & EMBEDDINGS else storage.optimizer_bits, 32 if storage.weight_bits == 32 else 16


def _moments(path: str, sides: tuple[int, ...], storage: Storage) -> list[Array]:
    elements, (moments, weights) = math.prod(sides), _bits(path, sides, storage)
    rest = [Array(elements, 1, len(sides))] if weights < storage.weight_bits < 32 else []
    if moments == 32:
        return [Array(elements, 4, len(sides))] * 2 + rest
    return [Array(elements, 1, len(sides)), Array(elements // GROUP, 4, 1)] * 2 + rest


def _average(sides: tuple[int, ...], storage: Storage) -> Array:
    return Array(math.prod(sides), 2 if storage.ema_bits == 16 and len(sides) > 1 else 4, len(sides))
