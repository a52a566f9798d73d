"""Whether a folder's tensors are those of a Llama's or a Gemma's shape, before anything is planned. No JAX."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from plimsoll.errors import DataError
from plimsoll.models.pretrained.safetensors_folder import READ, Tensor, require, tensors_of
from plimsoll.models.pretrained.shape import PretrainedShape

PIECE = 2**20
"""Numbers of a tensor that are read at a time: 4 MiB of float32."""
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def checked(folder: str | Path, shape: PretrainedShape) -> dict[str, Tensor]:
    """The folder's tensors, once they are found to be those of the shape. Raises DataError where they are not.

    Of a tied embedding some save only the head; where there are both, they are read and compared, and nothing else is.
    Old Llamas keep frequencies, which follow from the configuration.
    """
    found = tensors_of(folder)
    found = {name: tensor for name, tensor in found.items() if not name.endswith(".rotary_emb.inv_freq")}
    if shape.tied and HEAD in found:
        head = found.pop(HEAD)
        if EMBEDDING not in found:
            found[EMBEDDING] = head
        elif not _equal(head, found[EMBEDDING]):
            raise DataError(
                f"{folder} ties its head to its embedding (tie_word_embeddings), and holds two that differ,"
                f" {EMBEDDING} and {HEAD}: correct its config.json, or take out the one that is not used"
            )
    require(found, shape.tensors(), source=str(folder))
    return found


def _equal(a: Tensor, b: Tensor) -> bool:
    if (a.shape, a.kind) != (b.shape, b.kind):
        return False
    if a.kind not in READ:
        return True  # `require` says so
    return all(np.array_equal(a.rows(*piece), b.rows(*piece)) for piece in pieces_of(a.shape, PIECE))


def pieces_of(shape: tuple[int, ...], numbers: int) -> list[tuple[int, int]]:
    """Of the first axis: as many rows as make so many numbers, or one."""
    many = max(1, numbers // math.prod(shape[1:]))
    return [(first, min(first + many, shape[0])) for first in range(0, shape[0], many)]
