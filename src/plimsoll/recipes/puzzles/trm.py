"""The network of the Tiny Recursive Model: one module of two blocks, applied to two latent states again and again.

Jolicoeur-Martineau 2025, https://arxiv.org/abs/2510.04871, with its public code for details that the paper omits. A
supervision step is `high_cycles` rounds, each of `low_cycles` times `low = module(low, high + x)` and then `high =
module(high, low)`; the gradient goes through the last round only. The rounds before it, two nested scans, keep nothing
for the backward pass. `recipes/puzzles/act.py` has the training functions.

Blocks are post-norm, without learned scales: `h = rms(h + mix(h))`, `h = rms(h + swiglu(h))`. Sums and norms are
computed in float32, whatever the precision of matrix products. If the option `activations` is bfloat16, latents are
bfloat16 within a supervision step, as in the public code (`forward_dtype`). Between steps latents are float32, and so
are logits. Kernels are (in, out), the faster order on a CPU.

With a feed-forward across positions, the first axis of latents inside the blocks is positions (`Inside`). A product
from the left then mixes positions, one from the right mixes features, without a transposition in between.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from plimsoll.levers.activations import in_float32, stream, swiglu
from plimsoll.levers.attention import attention
from plimsoll.levers.precision import Form, dot, dot_columns, rounded
from plimsoll.levers.remat import keep, scan_blocks, unrolls
from plimsoll.levers.sharding import by_rows
from plimsoll.models.rotary import rotary_angles, rotate
from plimsoll.models.shape import Rotary
from plimsoll.recipes.puzzles.model import Trm
from plimsoll.recipes.specs import PuzzleSpec
from plimsoll.types import Compute

NORM_EPSILON = 1e-5
INNER_MULTIPLE = 256
TRUNCATED_STD = 0.87962566103423978
"""Standard deviation of a standard normal distribution cut off at -2 and 2."""
Q_BIAS = -5.0
"""Initial bias of the halting head's two logits (the second is unused): at first the model halts no puzzle."""

Latent = Float[Array, "batch positions width"]
Inside = Float[Array, "batch positions width"] | Float[Array, "positions batch width"]
"""Latents inside the blocks: the first form with attention, the second with a feed-forward across positions."""


class Network:
    """Network as pure functions over a pytree of weights."""

    def __init__(self, model: Trm, spec: PuzzleSpec, compute: Compute) -> None:
        self.model = model
        self.vocab = spec.vocab
        self.positions = model.puzzle_positions + spec.length
        """Number of positions of a latent: those of the puzzle's embedding, then the tokens."""
        self.compute = compute
        self.positions_first = model.variant == "mlp"
        self._dot = partial(dot, compute=compute)
        self._dot_columns = partial(dot_columns, compute=compute)

    def init(self, key: Array) -> dict[str, Any]:
        """Returns float32 weights. Standard deviations are 1/sqrt(inputs) for kernels and 1/sqrt(width) for
        embeddings."""
        model = self.model
        d = model.width
        length = self.positions
        embedding, head, _, *block_keys = jax.random.split(key, 3 + model.layers)
        blocks = []
        for block_key in block_keys:
            keys = jax.random.split(block_key, 4)
            if model.variant == "attention":
                mixing = {"qkv": truncated(keys[0], (d, 3 * d)), "out": truncated(keys[1], (d, d))}
            else:
                mixing = {
                    "mix_gate_up": truncated(keys[0], (length, 2 * inner_width(length))),
                    "mix_down": truncated(keys[1], (inner_width(length), length)),
                }
            gate_up = truncated(keys[2], (d, 2 * inner_width(d)))
            down = truncated(keys[3], (inner_width(d), d))
            blocks.append(mixing | {"gate_up": gate_up, "down": down})
        return {
            "embedding": truncated(embedding, (self.vocab, d), std=d**-0.5),
            "blocks": blocks,
            "head": truncated(head, (d, self.vocab)),
            "halt": {"kernel": jnp.zeros((d, 2)), "bias": jnp.full(2, Q_BIAS)},
        }

    def embedded(self, weights: dict, inputs: Int[Array, "batch length"], rows: Float[Array, "batch width"]) -> Latent:
        """Returns the embedded puzzles times sqrt(width), which every update of the low latent adds.

        The puzzle embeddings `rows` are at the first position, zeros at the other positions before the tokens.
        """
        prefix = jnp.pad(rows[:, None], ((0, 0), (0, self.model.puzzle_positions - 1), (0, 0)))
        tokens = weights["embedding"][inputs].astype(jnp.float32)
        x = jnp.concatenate([prefix, tokens], axis=1)
        return by_rows(math.sqrt(self.model.width) * x)

    def recursed(self, weights: dict, high: Latent, low: Latent, x: Latent, *, learns: bool) -> tuple[Latent, Latent]:
        """Returns both latents after a supervision step on embedded puzzles `x`, in float32.

        If `learns`, gradients flow through the last round.
        """
        compute = self.compute
        blocks = weights["blocks"]
        high, low, x = (stream(latent, compute) for latent in (high, low, x))
        if self.positions_first:
            high, low, x = (jnp.swapaxes(latent, 0, 1) for latent in (high, low, x))

        # Rounds without gradient.
        fixed = jax.tree.map(lambda kernel: rounded(kernel, compute.precision), jax.lax.stop_gradient(blocks))
        fixed_x = jax.lax.stop_gradient(x)

        def one_round(latents: tuple[Inside, Inside], _: None) -> tuple[tuple[Inside, Inside], None]:
            high, low = latents
            low, _ = jax.lax.scan(
                lambda low, _: (self.module(fixed, low, high + fixed_x), None), low, length=self.model.low_cycles
            )
            return (self.module(fixed, high, low), low), None

        rounds = self.model.high_cycles - (1 if learns else 0)
        high, low = jax.lax.stop_gradient((high, low))
        (high, low), _ = jax.lax.scan(one_round, (high, low), length=rounds)

        # Run the last round, with gradients.
        if learns:
            high, low = jax.lax.stop_gradient((high, low))
            low = scan_blocks(
                lambda low, _: self.module(blocks, low, high + x),
                low,
                jnp.arange(self.model.low_cycles, dtype=jnp.int32),
                unrolled=unrolls(compute, layers=self.model.low_cycles),
                compute=compute,
            )
            # Not rematerialised: the backward pass begins with this call, so that would save no memory.
            high = self.module(blocks, high, low)
        if self.positions_first:
            high, low = jnp.swapaxes(high, 0, 1), jnp.swapaxes(low, 0, 1)
        return high.astype(jnp.float32), low.astype(jnp.float32)

    def module(self, blocks: list[dict], hidden: Inside, injected: Inside) -> Inside:
        """Returns the latent `hidden` after one update: `injected` is added, then all blocks are applied."""
        hidden = hidden + injected
        for block in blocks:
            if self.positions_first:  # a SwiGLU across positions; the norm is over positions, too
                gate_up = keep(self._dot_columns(block["mix_gate_up"], hidden))
                mixed = keep(self._dot_columns(block["mix_down"], _gated(gate_up, axis=0)))
                hidden = rms(hidden + mixed, axis=0)
            else:
                hidden = rms(hidden + self._attended(block, hidden))
            gate_up = keep(self._dot(hidden, block["gate_up"]))
            hidden = rms(hidden + keep(self._dot(_gated(gate_up, axis=-1), block["down"])))
        return by_rows(hidden, axis=1 if self.positions_first else 0)

    def _attended(self, weights: dict, hidden: Latent) -> Latent:
        batch, length, width = hidden.shape
        heads = keep(self._dot(hidden, weights["qkv"])).reshape(batch, length, 3, self.model.heads, -1)
        query, key, value = (jnp.swapaxes(heads[:, :, i], 1, 2) for i in range(3))
        angles = rotary_angles(jnp.arange(length), width // self.model.heads, Rotary())
        mixed = attention(rotate(query, angles), rotate(key, angles), value, compute=self.compute)
        return keep(self._dot(mixed.swapaxes(1, 2).reshape(batch, length, width), weights["out"]))

    def answered(
        self, weights: dict, high: Latent
    ) -> tuple[Float[Array, "batch length vocab"], Float[Array, " batch"]]:
        """Returns the logits of the tokens and the logits of halting."""
        logits = self._dot(high[:, self.model.puzzle_positions :], weights["head"])
        halt = weights["halt"]
        kernel = halt["kernel"].astype(jnp.float32)
        q = dot(high[:, 0], kernel, Form("float32", self.compute.platform)) + halt["bias"]
        return logits, q[:, 0]


def inner_width(width: int) -> int:
    """Returns the inner width of a SwiGLU over `width` features or positions: 8/3 of `width`, rounded up to a multiple
    of 256."""
    return math.ceil(round(width * 8 / 3) / INNER_MULTIPLE) * INNER_MULTIPLE


def rms(x: Array, *, axis: int = -1) -> Array:
    """Returns x over its root mean square along an axis, unscaled. Zhang and Sennrich 2019,
    https://arxiv.org/abs/1910.07467."""
    return in_float32(lambda x: x * jax.lax.rsqrt(jnp.mean(x * x, axis=axis, keepdims=True) + NORM_EPSILON), x)


def _gated(gate_up: Array, *, axis: int) -> Array:
    """Returns silu(first half) * second half of `gate_up` along an axis."""
    gate, up = jnp.split(gate_up, 2, axis=axis)
    return swiglu(gate, up)


def truncated(key: Array, shape: tuple[int, ...], *, std: float | None = None) -> Array:
    """Returns normal values cut off at two standard deviations, and scaled to the standard deviation `std`.

    Default: that of a kernel (inputs, outputs), 1/sqrt(inputs).
    """
    scale = shape[0] ** -0.5 if std is None else std
    return scale / TRUNCATED_STD * jax.random.truncated_normal(key, -2, 2, shape)
