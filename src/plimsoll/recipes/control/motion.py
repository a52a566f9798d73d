"""Views of a window of states that show its motion at every size, as tokens.

A system is recognised from how its state changes from step to step, and close to rest these changes are some
thousandths of the states' unit: below what a network's first layer tells apart. So each state comes a second time, and
its change from step to step besides, both divided by their root mean squares over the window; the logarithms of these
roots say how large they were.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

LEAST = 1e-7
"""Root mean square below which a state does not move at all: filling, whose every view is zero."""
STATE_LEVEL, CHANGE_LEVEL, LEVEL_WIDTH = -4.0, -6.0, 3.0
"""Usual logarithms of states and of their changes, and how far they spread: both enter a network as about 1 or less."""


def token_features(features: int, *, states: int, patch: int) -> int:
    """Returns the numbers in a token of `motion_tokens`."""
    return 3 * patch * states + features - states + 2 * states


def motion_tokens(
    inputs: Float[Array, "batch length features"], *, states: int, patch: int
) -> Float[Array, "batch tokens wide"]:
    """Returns a token for every `patch` time steps: the states, their views, what is no state, the logarithms.

    Args:
        inputs: Windows, whose first features are states; the others (a system's code) are the same at all times.
        states: Number of states among the features.
        patch: Time steps of a token; divides the length.
    """
    batch, length, _ = inputs.shape
    tokens = length // patch
    x, constant = inputs[..., :states], inputs[:, ::patch, states:]
    change = jnp.diff(x, axis=1, prepend=x[:, :1])
    views, levels = [x], []
    for values, level in ((x, STATE_LEVEL), (change, CHANGE_LEVEL)):
        root = jnp.sqrt(jnp.mean(values**2, axis=1, keepdims=True) + LEAST**2)
        moves = root > 2 * LEAST
        views.append(jnp.where(moves, values / root, 0))
        levels.append(jnp.where(moves, (jnp.log(root) - level) / LEVEL_WIDTH, 0))
    shown = [view.reshape(batch, tokens, patch * states) for view in views]
    return jnp.concatenate(
        [*shown, constant, *(jnp.broadcast_to(one, (batch, tokens, states)) for one in levels)], axis=-1
    )
