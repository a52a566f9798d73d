"""A layer that mixes positions by a diagonal complex linear recurrence: each state is turned and shrunk at every token.

    beta_t = gamma * (B x_t)        c_t = lambda * c_{t-1} + beta_t        y_t = sigmoid(W x_t) * (C c_t + D x_t)

x_t is the input, c_t the states, y_t the output. lambda = exp(-exp(nu) + i theta) is inside the unit disc for every nu,
and gamma = sqrt(1 - |lambda|^2) keeps states as large as their input. gamma follows from lambda and is not learned, so
that the two cannot drift apart. C reads the states' real and imaginary parts. Orvieto et al. 2023, "LRU",
https://arxiv.org/abs/2303.06349, sections 3.3 and 3.4.

States and their coefficients are float32 for every `precision` and `activations`: with 1 - |lambda| = 1e-4, bfloat16
would round lambda to 1. A layer's memory does not grow with the distance that it looks back, and the model needs no
table of positions.
"""

import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float, Float64

from plimsoll.levers.activations import in_float32
from plimsoll.levers.remat import keep
from plimsoll.models.decoder import FEED_FORWARD, Block, Layer, Places, Stream, init_linear, product
from plimsoll.models.shape import DecoderShape
from plimsoll.recipes.longcontext.model import Eigen
from plimsoll.recipes.longcontext.recurrence import Form, states
from plimsoll.types import Compute

SLOWER = 4.0
"""Divisor of the weights nu and theta. It makes them learn at a quarter of the learning rate, because the length of a
step of Adam does not depend on a parameter's scale."""
GOLDEN = (math.sqrt(5) - 1) / 2
FORGETS_WITHIN = 1e-6, 20.0
"""Bounds to which exp(nu) = -log |lambda| is clipped. The lower bound is near the resolution of float32; at the upper
bound a state is lost at once."""

State = Complex[Array, "batch states"]


def eigenvalues(weights: dict, model: Eigen) -> tuple[Float[Array, " states"], Float[Array, " states"]]:
    """Returns -log |lambda| and the phase in radians. Weights nu and theta hold differences from initial values.

    A phase is learned in units of the share that its state forgets per token, because turns add up over all tokens that
    the state remembers. Otherwise a step of Adam at learning rate 2e-3 would turn what is remembered from 4,096
    tokens ago by 2 radians.
    """

    rate, phase = beginning(model)
    least, most = (math.log(end) for end in FORGETS_WITHIN)
    log_rate = jnp.clip(np.log(rate).astype(np.float32) + weights["nu"] / SLOWER, least, most)
    unit = (np.minimum(rate, 1) / SLOWER).astype(np.float32)
    return jnp.exp(log_rate), jnp.asarray(phase, jnp.float32) + unit * weights["theta"]


def beginning(model: Eigen) -> tuple[Float64[np.ndarray, " states"], Float64[np.ndarray, " states"]]:
    """Returns the initial -log |lambda| and phase of each state.

    |lambda|^2 is evenly spaced. Phases follow the golden ratio, so that states with similar |lambda| have distant
    phases.
    """
    number = np.arange(model.states)
    low, high = model.r_min**2, model.r_max**2
    square = low + (high - low) * (number + 0.5) / model.states
    return np.clip(-np.log(square) / 2, *FORGETS_WITHIN), model.max_phase * (number * GOLDEN % 1)


class Mixer:
    """The layer of the module's formulas: recurrence, linear maps before and after, and gate."""

    def __init__(self, model: Eigen, compute: Compute) -> None:
        self.model = model
        self.compute = compute
        self.form: Form = "steps" if compute.platform == "cpu" else "matmul"
        """Algorithm of `recurrence.states`. On an accelerator, `steps` would be slow: a loop over positions."""

    def init(self, keys: Iterator[Array]) -> dict:
        width = self.model.width
        zeros = jnp.zeros((self.model.states,))
        pairs = 2 * self.model.states
        # In the module's formulas: enter is B, leave C, gate W, skip D.
        return {
            "eigenvalues": {"nu": zeros, "theta": zeros},
            "enter": init_linear(keys, width, pairs, scale=(2 * width) ** -0.5),
            "leave": init_linear(keys, pairs, width, scale=(2 * pairs * self.model.layers) ** -0.5),
            "gate": init_linear(keys, width, width),
            "skip": {"scale": jnp.zeros((width,))},
        }

    def __call__(self, weights: dict, x: Stream, before: State | None = None) -> tuple[Stream, State]:
        """Returns the layer's output, and the states after the last token. `before` are the states before the first
        token; zero if None."""
        rate, phase = eigenvalues(weights["eigenvalues"], self.model)
        coefficient = jnp.exp(jax.lax.complex(-rate, phase))
        gamma = jnp.sqrt(-jnp.expm1(-2 * rate))
        entered = keep(product(x, weights["enter"], self.compute)).astype(jnp.float32)
        real, imaginary = jnp.split(entered, 2, axis=-1)
        inputs = jax.lax.complex(gamma * real, gamma * imaginary)
        if before is None:
            before = jnp.zeros_like(inputs[:, 0])
        result = states(coefficient, inputs, before, self.form, self.model.chunk_size)
        left = jnp.concatenate([result.real, result.imag], axis=-1).astype(x.dtype)
        read = keep(product(left, weights["leave"], self.compute))
        gate = keep(product(x, weights["gate"], self.compute))
        return in_float32(gated, x, weights["skip"]["scale"], gate, read), result[:, -1]


def gated(x: Array, scale: Array, gate: Array, read: Array) -> Array:
    """Returns sigmoid(gate) * (read + scale * x), y_t of the module's formulas."""
    return jax.nn.sigmoid(gate) * (read + scale * x)


class EigenBlock(Layer):
    """x + mixer(norm(x)), then x + feed-forward(norm(x))."""

    def __init__(self, model: Eigen, shape: DecoderShape, compute: Compute) -> None:
        super().__init__(shape, compute)
        self.mixer = Mixer(model, compute)

    def init(self, keys: Iterator[Array]) -> dict:
        mixing = {"mixer_norm": {"scale": jnp.ones((self.shape.width,))}, "mixer": self.mixer.init(keys)}
        return mixing | self.init_weights(keys, FEED_FORWARD)

    def __call__(self, weights: dict, x: Stream, places: Places) -> Stream:
        """Returns the layer's output from a state of zero. `places` is unused, because only attention needs
        positions."""
        return self.onward(weights, x, None)[0]

    def onward(self, weights: dict, x: Stream, before: State | None) -> tuple[Stream, State]:
        """Returns the layer's output from the states `before` the first token, and the states after the last token."""
        normed = self.normed(x, weights["mixer_norm"]["scale"])
        mixed, after = self.mixer(weights["mixer"], normed, before)
        return self.fed(weights, x + mixed), after


class Group:
    """Recurrent layers, then one attention layer. The decoder stacks such groups if `attention_every` is set."""

    def __init__(self, model: Eigen, shape: DecoderShape, compute: Compute) -> None:
        self.layers = model.attention_every
        self.recurrent = {f"recurrent_{number}": EigenBlock(model, shape, compute) for number in range(self.layers - 1)}
        self.attending = Block(shape, compute)

    def init(self, keys: Iterator[Array]) -> dict:
        recurrent = {name: block.init(keys) for name, block in self.recurrent.items()}
        return recurrent | {"attending": self.attending.init(keys)}

    def __call__(self, weights: dict, x: Stream, places: Places) -> Stream:
        for name, block in self.recurrent.items():
            x = block(weights[name], x, places)
        return self.attending(weights["attending"], x, places)
