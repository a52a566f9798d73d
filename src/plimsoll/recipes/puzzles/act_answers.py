"""What a trained Tiny Recursive Model answers: after every supervision step of a puzzle, or after the last of many.

As in an evaluation, everybody takes all the steps (`recipes/puzzles/act.py`); the halting logit says when it
would have stopped.
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
    tokens: Int[Array, "*steps batch length"]
    """The likeliest, int32."""
    halt_logits: Float[Array, "*steps batch"]
    """Positive: it would stop, as the answer is likelier right than not."""


def every_step(task: RecursiveSolver, params: Params, batch: Batch) -> Answers:
    """`inputs` and `puzzle_identifiers` of `batch` to (steps, batch, ...)."""
    weights = params["trainable"]
    x, begun = _begun(task, params, batch)

    def step(latents: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Answers]:
        latents = task.network.recursed(weights, *latents, x, learns=False)
        return latents, _likeliest(*task.network.answered(weights, latents[0]))

    _, answers = jax.lax.scan(step, begun, length=task.halting.max_steps)
    return answers


def judged(task: RecursiveSolver, params: Params, batch: Batch) -> tuple[Metrics, Answers]:
    """The sums of an evaluation, `loss` among them, and the answers (batch, ...) they are of."""
    x, begun = _begun(task, params, batch)
    logits, q = task.after_all_steps(params["trainable"], *begun, x)
    loss, metrics = task.judged(logits, q, batch["labels"], batch[COUNTED])
    return metrics | {"loss": loss}, _likeliest(logits, q)


def _begun(task: RecursiveSolver, params: Params, batch: Batch) -> tuple[Array, tuple[Array, Array]]:
    """What every update is given, and both latents as they begin."""
    shape, frozen = task.shape, params["frozen"]
    rows = params["tables"][PUZZLES][batch["puzzle_identifiers"]]
    x = task.network.embedded(params["trainable"], batch["inputs"], rows)
    size = (len(batch["inputs"]), shape.whole_length, shape.width)
    return x, (jnp.broadcast_to(frozen["high"], size), jnp.broadcast_to(frozen["low"], size))


def _likeliest(logits: Array, q: Array) -> Answers:
    return Answers(jnp.argmax(logits, axis=-1).astype(jnp.int32), q)
