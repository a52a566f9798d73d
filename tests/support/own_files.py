"""Recipe files as a user writes them, at the size of a test."""

SMALL = """
import jax, jax.numpy as jnp, numpy as np, optax, plimsoll

def init(key):
    return {"slope": jax.random.normal(key, (3,)), "bias": jnp.zeros(())}

def loss(params, batch):
    error = (batch["x"] @ params["slope"] + params["bias"] - batch["y"]) ** 2
    return jnp.sum(error), error.size

def data():
    x = np.random.default_rng(0).normal(size=(40, 3))
    return {"x": x, "y": x @ [1.0, -2.0, 0.5]}

GIVEN = dict(init=init, loss=loss, data=data, optimizer=optax.sgd(0.1))
FIELDS = dict(batch_size=8, steps=5)
"""

ONE = SMALL + "recipe = plimsoll.recipe(**GIVEN, **FIELDS)\n"
"""A whole recipe; what a test appends replaces it."""


def write(folder, text, name="mine.py"):
    path = folder / name
    path.write_text(text)
    return str(path)


def with_(**functions):
    """The recipe with other functions, given as source."""
    given = ", ".join(f"{name}={source}" for name, source in functions.items())
    return ONE + f"recipe = plimsoll.recipe(**(GIVEN | FIELDS | dict({given})))\n"
