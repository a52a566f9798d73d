"""Answers of a trained Tiny Recursive Model: after every supervision step of a puzzle, or after the last one.

As in an evaluation, every puzzle takes all steps (`recipes/puzzles/act.py`); the halting logit says when it would have
stopped.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from plimsoll.recipes.puzzles.act import PUZZLES, RecursiveSolver
from plimsoll.types import COUNTED, Batch, Metrics, Params


class Answers(NamedTuple):
    """Predictions for a batch, with an axis of steps in front if every step was kept."""

    tokens: Int[Array, "*steps batch length"]
    """Most likely tokens, int32."""
    halt_logits: Float[Array, "*steps batch"]
    """Logits of halting; a positive one means that the answer is more likely right than wrong."""


def every_step(task: RecursiveSolver, params: Params, batch: Batch) -> Answers:
    """Returns the answers after each step, (steps, batch, ...), to `inputs` and `puzzle_identifiers` of `batch`."""
    weights = params["trainable"]
    x, latents = _initial(task, params, batch)

    def step(latents: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Answers]:
        latents = task.network.recursed(weights, *latents, x, learns=False)
        return latents, _likeliest(*task.network.answered(weights, latents[0]))

    _, answers = jax.lax.scan(step, latents, length=task.halting.max_steps)
    return answers


def judged(task: RecursiveSolver, params: Params, batch: Batch) -> tuple[Metrics, Answers]:
    """Returns the metrics of an evaluation as sums, with `loss`, and the answers (batch, ...) that were evaluated."""
    x, latents = _initial(task, params, batch)
    logits, q = task.after_all_steps(params["trainable"], *latents, x)
    loss, metrics = task.judged(logits, q, batch["labels"], batch[COUNTED])
    return metrics | {"loss": loss}, _likeliest(logits, q)


def _initial(task: RecursiveSolver, params: Params, batch: Batch) -> tuple[Array, tuple[Array, Array]]:
    """Returns the embedded input and both initial latents."""
    shape, frozen = task.shape, params["frozen"]
    rows = params["tables"][PUZZLES][batch["puzzle_identifiers"]]
    x = task.network.embedded(params["trainable"], batch["inputs"], rows)
    size = (len(batch["inputs"]), shape.whole_length, shape.width)
    return x, (jnp.broadcast_to(frozen["high"], size), jnp.broadcast_to(frozen["low"], size))


def _likeliest(logits: Array, q: Array) -> Answers:
    return Answers(jnp.argmax(logits, axis=-1).astype(jnp.int32), q)
