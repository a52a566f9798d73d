"""A model of one's own for the text of `stories`: each token is predicted from the one before it alone.

plimsoll train docs/examples/own_model.py --dataset-id my-texts/ --memory 600MiB
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

import plimsoll
from plimsoll.options import PositiveInt
from plimsoll.recipes.parts import Model
from plimsoll.recipes.specs import TokenSpec
from plimsoll.types import LossSum


@dataclass(frozen=True, kw_only=True)
class Bigrams(Model):
    """Predicts a token from the one before it alone."""

    name = "bigrams"
    reads = TokenSpec

    width: PositiveInt = 32
    """Numbers for each token."""

    def task(self, spec, compute):
        return BigramTask(spec.vocab, self.width)


@dataclass(frozen=True)
class BigramTask:
    """First weights and loss, pure functions. `spec.batch(1)` says what is in a batch."""

    vocab: int
    width: int

    def init(self, key):
        into, out = jax.random.split(key)
        table = jax.random.normal(into, (self.vocab, self.width))
        head = jax.random.normal(out, (self.width, self.vocab)) / self.width
        return {"trainable": {"embedding": table, "head": head}}

    def loss(self, params, carry, batch, keys, *, train):
        ids, labels = batch["input_ids"], batch["labels"]
        weights = params["trainable"]
        logits = weights["embedding"][ids] @ weights["head"]
        counts = (labels >= 0).astype(jnp.float32)  # rows that only fill up a batch have labels below
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(labels, 0))
        return LossSum(jnp.sum(losses * counts), jnp.sum(counts)), carry, {}


recipe = plimsoll.preset("stories").replace(model=Bigrams(), steps=500)
