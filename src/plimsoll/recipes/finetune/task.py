"""Training functions of fine-tuning: next-token prediction by a published model, with adapters or fully trained."""

from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array

from plimsoll.levers.frozen import FrozenBits, packed
from plimsoll.levers.lora import LoRA
from plimsoll.models.language import NextToken
from plimsoll.models.pretrained.weights import kept
from plimsoll.recipes.finetune.model import Pretrained
from plimsoll.recipes.specs import DocumentSpec
from plimsoll.types import Compute, Params, Task


class Published(NextToken):
    """Model and loss (`types.Task`) of a published language model."""

    in_halves = True

    def stored(self, frozen: dict, bits: FrozenBits) -> dict:
        """Returns the model's weights in `bits` bits (`types.StoresFrozen`).

        The embedding and an untied output layer keep at least 16 bits, since every token goes through them. If the
        lever `embedding_bits` is 8 or 4, they have that many bits, and the embedding is transposed to the output
        layer's shape.
        """
        words = {name: frozen[name] for name in ("embedding", "head") if name in frozen}
        others = {name: part for name, part in frozen.items() if name not in words}
        of_words: FrozenBits = self.compute.lever("embedding_bits", 16)
        if of_words in (8, 4):
            kernels = {name: leaf.T if name == "embedding" else leaf for name, leaf in words.items()}
            return kept(others, bits) | {name: packed(kernel, of_words) for name, kernel in kernels.items()}
        if of_words == 16:
            return kept(others, bits) | kept(words, cast(FrozenBits, max(bits, 16)))
        return kept(others, bits)


class Blank(Published):
    """The model before its weights are loaded. Its weights are zeros in their storage format.

    Random initial weights would first be float32: 18 GiB beside the state for a fully trained model of 3B parameters.
    """

    def init(self, key: Array) -> Params:
        return zeros_of(super().init, key)

    def stored(self, frozen: dict, bits: FrozenBits) -> dict:
        return zeros_of(lambda frozen: Published.stored(self, frozen, bits), frozen)


def zeros_of(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns zeros in the tree, shapes and types of the function's result, without its computation."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(function, *arguments))


def tuned(model: Pretrained, spec: DocumentSpec, compute: Compute) -> Task:
    """Returns the training functions of the published model, with adapters or fully trained."""
    if not model.lora_rank:
        return Blank(model.shape, compute)
    adapter = model.adapter
    return LoRA(
        Blank(model.shape, compute, frozen=True),
        model.lora_targets,
        rank=adapter.rank,
        alpha=adapter.alpha,
        rslora=adapter.rslora,
        dropout=adapter.dropout,
    )
