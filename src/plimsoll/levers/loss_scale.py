"""Dynamic loss scaling: what makes gradients fit into float16.

float16 ends at 65,504 and loses what is below 6e-8; gradients of a mean loss are often smaller. So the loss is
multiplied by `scale` before the backward pass and the gradient divided by it after. When a gradient overflows, the step
is skipped and the scale halved; after `PATIENCE` steps without one it is doubled. Micikevicius et al. 2018,
https://arxiv.org/abs/1710.03740, section 3.2.

Powers of two only, so scaling rounds nothing. Price: two numbers of state, one look at every gradient, and the skipped
steps. Only float16 needs it: bfloat16 and TF32 reach as far as float32.

In a step: `value_and_grad` of `loss * state.scale` for every micro-batch; `unscaled` the sum of gradients; update as
ever; `chosen` between the new and the old parameters and optimizer state, so that on a skipped step neither moments
nor the schedule's count advance; `adjusted` the state. The step's own number goes on: it is the position in the data.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

FIRST, SMALLEST, LARGEST = 2.0**16, 1.0, 2.0**30
PATIENCE = 2_000
"""Good steps in a row after which the scale is doubled."""


class LossScale(NamedTuple):
    """Part of the training state: saved, restored and donated with it."""

    scale: Float[Array, ""]
    good_steps: Int[Array, ""]
    """Since the scale was last changed."""
    skipped_steps: Int[Array, ""]
    """Of the whole run. A run that skips every step has diverged: the scale stays at `SMALLEST` and this rises."""


def start() -> LossScale:
    return LossScale(jnp.float32(FIRST), jnp.int32(0), jnp.int32(0))


def unscaled(gradient: Any, state: LossScale) -> tuple[Any, Bool[Array, ""]]:
    """Returns the gradient of the loss itself, for clipping and the optimizer, and whether all of it is finite."""
    gradient = jax.tree.map(lambda leaf: leaf / state.scale.astype(leaf.dtype), gradient)
    leaves = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(gradient)]
    return gradient, jnp.all(jnp.stack(leaves))


def chosen(finite: Bool[Array, ""], new: Any, old: Any) -> Any:
    """Returns `new` where the step is taken, `old`, to the bit, where it is skipped."""

    def chosen_leaf(new: Any, old: Any) -> Any:
        return old if new is old else jnp.where(finite, new, old)  # what is frozen may lie on the host

    return jax.tree.map(chosen_leaf, new, old)


def adjusted(state: LossScale, finite: Bool[Array, ""]) -> LossScale:
    """Returns the state of the next step."""
    good = jnp.where(finite, state.good_steps + 1, 0)
    grows = good >= PATIENCE
    grown = jnp.where(grows, jnp.minimum(2 * state.scale, LARGEST), state.scale)
    return LossScale(
        scale=jnp.where(finite, grown, jnp.maximum(state.scale / 2, SMALLEST)),
        good_steps=jnp.where(grows, 0, good),
        skipped_steps=state.skipped_steps + jnp.where(finite, 0, 1),
    )
