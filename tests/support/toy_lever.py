"""A lever in one file: norms computed in bfloat16. What it does, what it saves and its record stand here alone."""

from contextlib import contextmanager
from typing import Literal

from plimsoll.levers import registry
from plimsoll.levers.lever import Lever, Rung, Support

NORM_BYTES = {"float32": 4, "bfloat16": 2}


def normalised(x, compute):
    """Returns `x` over its root mean square, as `compute` says."""
    import jax.numpy as jnp

    x = x.astype(compute.lever("norms"))
    return x / jnp.sqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + jnp.asarray(1e-6, x.dtype))


def norm_bytes(*, tokens, width, norms):
    """Returns the bytes of one norm's result."""
    return tokens * width * NORM_BYTES[norms]


NORMS = Lever(
    name="norms",
    type=Literal["float32", "bfloat16"],
    help="Arithmetic of the norms.",
    plain="float32",
    touches="mixed",
    supports=(Support("norms"),),
    rungs=(Rung(name="norms-16", words="norms in {}", value="bfloat16"),),
)


@contextmanager
def registered(lever=NORMS):
    """Knows the lever for a while."""
    registry.register(lever)
    try:
        yield lever
    finally:
        del registry.LEVERS[lever.name]
