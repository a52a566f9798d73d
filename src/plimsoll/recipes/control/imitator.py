"""A small causal transformer that reads a window of states and predicts the control that follows the last state.

Post-norm, as in Vaswani et al. 2017, https://arxiv.org/abs/1706.03762: x = norm(x + sub(x)); a learned table of
positions, attention without biases, a feed-forward of GELU, LayerNorm with scale and bias. The loss is the squared
error over the controls that a system has, in units of their root mean square in the family: predictions of zero have a
loss of 1 for every family, so that families count alike.

--network chooses between two forms. In the form `published` a token is one time step, and the last layer gives the
control. In the form `gain` a token is some time steps, with the motion at every scale (`motion_tokens`), and the last
layer gives a gain matrix. Its product with the last state is the control, as for every linear controller: the network
only has to recognise the system.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from plimsoll.errors import RecipeError
from plimsoll.levers.attention import causal_attention
from plimsoll.levers.precision import Form, dot
from plimsoll.levers.remat import beside, keep, scan_blocks, unrolls
from plimsoll.levers.sharding import by_rows
from plimsoll.models.dropout import dropped
from plimsoll.recipes.control.model import Imitator
from plimsoll.recipes.specs import WindowSpec
from plimsoll.types import Batch, Compute, LossSum, Metrics, Params

NORM_EPSILON = 1e-6
POSITION_SCALE = 0.02
LONGEST = 128
"""Minimum number of rows in the table of positions."""
GAIN_UNIT = 64.0
"""Gain for an output of 1 from the last layer. The 35 families have largest gains of 2 to 154 in scaled units."""
GAIN_START = 1 / 64
"""Factor of the last layer's initial weights if they give a gain: gains begin at about 1, and controls near zero."""
LEAST = 1e-7
"""Lower bound in divisions by a root mean square (RMS): its square is added to the mean square. Values with an RMS
below sqrt(3) times this become zero."""
STATE_LEVEL, CHANGE_LEVEL, LEVEL_WIDTH = -4.0, -6.0, 3.0
"""Typical logarithms of the root mean squares of states and of their changes, and their spread. The
three scale the logarithms to absolute values of about 1 or less."""


class Imitating:
    """Model and loss (`types.Task`) for windows of states.

    Batches: `inputs` (batch, length, features), `controls` and `masks` (batch, outputs) float32, `family` (batch,)
    int32.
    """

    stacked = "blocks"

    def __init__(self, model: Imitator, spec: WindowSpec, compute: Compute) -> None:
        self.model = model
        self.compute = compute
        (self.length, self.features), _ = spec.arrays["inputs"]
        (self.outputs,), _ = spec.arrays["controls"]
        self.families = len(spec.families)
        self.gain_states = spec.states if model.network == "gain" else 0
        """Number of features that are states (the first), to multiply by the gain matrix; 0 for a network without a
        gain matrix, as published."""
        self.unrolled = ("blocks",) if unrolls(compute, layers=model.layers) else ()
        if self.gain_states and self.length % model.patch:
            divisors = ", ".join(str(size) for size in range(1, self.length + 1) if self.length % size == 0)
            raise RecipeError(
                f"a window of {self.length} states cannot be divided into tokens of --patch {model.patch}: choose one"
                f" of {divisors}"
            )

    def init(self, key: Array) -> Params:
        """Returns float32 parameters; blocks have a leading axis of layers. Kernels are LeCun normal, biases zero."""
        model = self.model
        first, place, blocks, last = jax.random.split(key, 4)
        states = self.gain_states
        leave = _linear(last, model.width, self.outputs * max(1, states))
        features = token_features(self.features, states=states, patch=model.patch) if states else self.features
        positions = max(LONGEST, self.length)
        return {
            "trainable": {
                "enter": _linear(first, features, model.width),
                "positions": POSITION_SCALE * jax.random.normal(place, (positions, model.width)),
                "blocks": jax.vmap(self._block)(jax.random.split(blocks, model.layers)),
                "leave": jax.tree.map(lambda leaf: GAIN_START * leaf, leave) if states else leave,
            }
        }

    def _block(self, key: Array) -> dict[str, Any]:
        d = self.model.width
        f = self.model.inner or 4 * d
        keys = jax.random.split(key, 6)
        return {
            **{name: _kernel(keys[i], d, d) for i, name in enumerate(("query", "key", "value", "out"))},
            "up": _linear(keys[4], d, f),
            "down": _linear(keys[5], f, d),
            "attention_norm": {"scale": jnp.ones(d), "bias": jnp.zeros(d)},
            "feed_norm": {"scale": jnp.ones(d), "bias": jnp.zeros(d)},
        }

    def predicted(
        self, weights: dict, inputs: Float[Array, "batch length features"], keys: Array | None = None
    ) -> Float[Array, "batch outputs"]:
        """Returns the controls in units of their root mean square in the family. `keys`, one per example, turn dropout
        on."""
        drop, states = partial(dropped, keys=keys, share=self.model.dropout), self.gain_states
        tokens = motion_tokens(inputs, states=states, patch=self.model.patch) if states else inputs
        x = self._dot(tokens, weights["enter"]) + weights["positions"][: tokens.shape[1]]
        x = by_rows(drop(x, place=0))

        def apply(x: Array, numbered: Any) -> Array:
            block, number = numbered
            heads = (*x.shape[:2], self.model.heads, -1)
            query, key, value = (
                keep(self._dot(x, block[name])).reshape(heads).swapaxes(1, 2) for name in ("query", "key", "value")
            )
            mixed = causal_attention(query, key, value, compute=self.compute)
            mixed = keep(self._dot(mixed.swapaxes(1, 2).reshape(x.shape), block["out"]))
            x = layer_norm(x + drop(mixed, place=2 * number + 1), **block["attention_norm"])
            inner = self._dot(jax.nn.gelu(keep(self._dot(x, block["up"]))), block["down"])
            return by_rows(layer_norm(x + drop(inner, place=2 * number + 2), **block["feed_norm"]))

        numbered = beside(weights["blocks"], jnp.arange(self.model.layers))
        x = scan_blocks(apply, x, numbered, unrolled=bool(self.unrolled), compute=self.compute)
        if not states:
            return self._dot(x[:, -1], weights["leave"])
        exact = partial(dot, compute=Form("float32", self.compute.platform))  # products with states cancel below
        said = exact(x[:, -1], weights["leave"]["kernel"]) + weights["leave"]["bias"]
        gains = GAIN_UNIT * said.reshape(-1, self.outputs, states)
        return jnp.sum(gains * inputs[:, -1:, :states], axis=-1)

    def _dot(self, x: Array, kernel: Any) -> Array:
        weights, bias = (kernel["kernel"], kernel["bias"]) if isinstance(kernel, dict) else (kernel, 0)
        return dot(x, weights, self.compute) + bias

    def loss(
        self, params: Params, carry: None, batch: Batch, keys: Array, *, train: bool
    ) -> tuple[LossSum, None, Metrics]:
        """Returns squared errors over existing controls, and in an evaluation a metric for each family.

        `unexplained_12` is the squared errors of family 12 (by index) over its squared controls: 1 - R^2, if R^2 has
        zero as baseline instead of the mean.

        In training, the squared errors of a window are divided by sqrt(mean squared control + `error_floor`^2).
        Otherwise one window in a hundred, those with the largest controls, would give most of the loss.
        """
        weights, masks = params["trainable"], batch["masks"]
        squared = masks * (self.predicted(weights, batch["inputs"], keys if train else None) - batch["controls"]) ** 2
        loss = LossSum(jnp.sum(squared), jnp.sum(masks))
        if train:
            return (LossSum(self._softened(squared, batch), loss.weight) if self.model.error_floor else loss), None, {}
        families = self.families
        errors, powers = (
            jax.ops.segment_sum(jnp.sum(x, axis=1), batch["family"], num_segments=families)
            for x in (squared, masks * batch["controls"] ** 2)
        )
        return loss, None, {f"unexplained_{i}": LossSum(errors[i], powers[i]) for i in range(families)}

    def _softened(self, squared: Float[Array, "batch outputs"], batch: Batch) -> Float[Array, ""]:
        powers = jnp.sum(batch["masks"] * batch["controls"] ** 2, axis=1)
        size = jnp.sqrt(powers / jnp.maximum(jnp.sum(batch["masks"], axis=1), 1) + self.model.error_floor**2)
        return jnp.sum(jnp.sum(squared, axis=1) / size)


def token_features(features: int, *, states: int, patch: int) -> int:
    """Returns the number of features in a token of `motion_tokens`."""
    return 3 * patch * states + features - states + 2 * states


def motion_tokens(
    inputs: Float[Array, "batch length features"], *, states: int, patch: int
) -> Float[Array, "batch tokens wide"]:
    """Returns a token for every `patch` time steps: the states, their views, the other features, and the logarithms.

    Changes of the state from step to step reveal the system, and close to rest they are some thousandths of the states'
    unit: too small for a network's first layer. So a token also has views: each state and its change from step to step,
    divided by their root mean squares over the window. The logarithms of these root mean squares tell the sizes.

    Args:
        inputs: Windows, whose first features are states; the others (a system's code) are the same at all times.
        states: Number of states among the features.
        patch: Time steps of a token, a divisor of the window's length.
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


def layer_norm(
    x: Float[Array, "... width"], scale: Float[Array, " width"], bias: Float[Array, " width"]
) -> Float[Array, "... width"]:
    """Returns layer normalisation (Ba et al. 2016, https://arxiv.org/abs/1607.06450), in float32."""
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + NORM_EPSILON) * scale + bias


def _kernel(key: Array, inner: int, cols: int) -> Array:
    return jax.random.normal(key, (inner, cols)) / math.sqrt(inner)


def _linear(key: Array, inner: int, cols: int) -> dict[str, Array]:
    return {"kernel": _kernel(key, inner, cols), "bias": jnp.zeros(cols)}
