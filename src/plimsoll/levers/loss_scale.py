"""Dynamic loss scaling, which makes gradients fit into float16.

float16 ends at 65,504 and rounds numbers below 6e-8 to zero; gradients of a mean loss are often smaller. So the loss is
multiplied by `scale` before the backward pass, and the gradient divided by it afterwards. If a gradient overflows, the
step is skipped and the scale halved; after `PATIENCE` steps without an overflow it is doubled. Micikevicius et al.
2018, https://arxiv.org/abs/1710.03740, section 3.2.

The scale is a power of two, so scaling rounds nothing. Price: three numbers of state, one pass over every gradient, and
the skipped steps. Only float16 needs it: bfloat16 and TF32 have the range of float32.

A step calls `value_and_grad` of `loss * state.scale` for every micro-batch, `unscaled` on the sum of gradients, and the
usual update. Then `chosen` takes the new or the old parameters and optimizer state, so that a skipped step advances
neither moments nor the schedule's count. `adjusted` returns the next loss scale. The step's number does advance: it is
the position in the data.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

FIRST, SMALLEST, LARGEST = 2.0**16, 1.0, 2.0**30
PATIENCE = 2_000
"""Steps in a row without an overflow after which the scale is doubled."""


class LossScale(NamedTuple):
    """Loss scale and its counters, a part of the training state."""

    scale: Float[Array, ""]
    good_steps: Int[Array, ""]
    """Number of steps without an overflow since the scale last changed."""
    skipped_steps: Int[Array, ""]
    """Number of skipped steps of the whole run. If it rises while the scale is `SMALLEST`, the run has diverged."""


def start() -> LossScale:
    return LossScale(jnp.float32(FIRST), jnp.int32(0), jnp.int32(0))


def unscaled(gradient: Any, state: LossScale) -> tuple[Any, Bool[Array, ""]]:
    """Returns the gradient of the unscaled loss, and whether every element is finite."""
    gradient = jax.tree.map(lambda leaf: leaf / state.scale.astype(leaf.dtype), gradient)
    leaves = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(gradient)]
    return gradient, jnp.all(jnp.stack(leaves))


def chosen(finite: Bool[Array, ""], new: Any, old: Any) -> Any:
    """Returns `new` if the gradient is finite, else `old`, unchanged to the bit."""

    def chosen_leaf(new: Any, old: Any) -> Any:
        return old if new is old else jnp.where(finite, new, old)  # `where` cannot read frozen weights on the host

    return jax.tree.map(chosen_leaf, new, old)


def adjusted(state: LossScale, finite: Bool[Array, ""]) -> LossScale:
    """Returns the loss scale of the next step."""
    good = jnp.where(finite, state.good_steps + 1, 0)
    grows = good >= PATIENCE
    grown = jnp.where(grows, jnp.minimum(2 * state.scale, LARGEST), state.scale)
    return LossScale(
        scale=jnp.where(finite, grown, jnp.maximum(state.scale / 2, SMALLEST)),
        good_steps=jnp.where(grows, 0, good),
        skipped_steps=state.skipped_steps + jnp.where(finite, 0, 1),
    )
