"""Task of fine-tuning: the next token of a published model, beside adapters or whole; where its weights come from."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
from jaxtyping import Array

from plimsoll.levers.frozen import FrozenBits
from plimsoll.models.pretrained.language import PretrainedNextToken
from plimsoll.models.pretrained.shape import PretrainedShape
from plimsoll.models.pretrained.weights import load_over
from plimsoll.types import Params


class Blank(PretrainedNextToken):
    """The model before its weights are read: zeros in the form in which they are stored, which cost nothing.

    Random numbers would first be there in float32: of a model of 3B that is learned whole, 18 GiB beside the state.
    """

    def init(self, key: Array) -> Params:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(super().init, key))

    def stored(self, frozen: dict, bits: FrozenBits) -> dict:
        like = jax.eval_shape(lambda frozen: PretrainedNextToken.stored(self, frozen, bits), frozen)
        return jax.tree.map(lambda part: jnp.zeros(part.shape, part.dtype), like)


def base_of(frozen: dict, folder: Path, shape: PretrainedShape) -> dict:
    """Returns frozen weights of a `LoRA` around `Blank` with the model's own, read in the place of what was there."""
    return frozen | {"base": load_over(frozen["base"], folder, shape)}


def whole_of(params: Params, folder: Path, shape: PretrainedShape) -> Params:
    """Returns parameters of a model that is tuned whole, with its published weights."""
    return params | {"trainable": load_over(params["trainable"], folder, shape)}
