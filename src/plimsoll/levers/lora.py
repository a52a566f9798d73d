"""LoRA: the weights are frozen, and for each adapted kernel the product of two thin matrices is learned.

`x @ kernel + (alpha / rank) (x @ a) @ b`, with `a` of (inner, rank) drawn at random and `b` of (rank, cols) zero, so
that training starts from the frozen model's results. Hu et al. 2021, https://arxiv.org/abs/2106.09685, equation 3. With
rsLoRA the scale is alpha / sqrt(rank): Kalajdzievski 2023, https://arxiv.org/abs/2312.03732. Initial values are those
of PEFT, as is dropout, which applies only to the input of `a`.

It saves the gradients and moments of frozen weights, which can also be stored in fewer bits (frozen.py). Only the input
of the product is kept for the backward pass, which computes `x @ a` and dropout's mask again. It is no lever of the
planner, because it changes the result of training: a recipe chooses it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, UInt32

from plimsoll.errors import RecipeError
from plimsoll.levers.frozen import FrozenBits, Packed, frozen_dot, over_tiles, stored
from plimsoll.levers.lora_targets import kernels_to_adapt, patterns_of
from plimsoll.levers.offload import on_host
from plimsoll.levers.precision import Form, dot
from plimsoll.levers.weight_bits import GOLDEN, random_bits
from plimsoll.types import Batch, Carry, Compute, LossSum, Metrics, Params, Stacks, StoresFrozen, Task


@partial(
    jax.tree_util.register_dataclass, data_fields=["base", "a", "b", "keys", "first"], meta_fields=["scale", "dropout"]
)
@dataclass(frozen=True)
class Adapted:
    """A frozen kernel of (..., inner, cols) with its adapter."""

    base: Any
    """The frozen kernel: an array, or `Packed` in 8 or 4 bits."""
    a: Array
    b: Array
    scale: float
    dropout: float = 0.0
    """Share of the input of `a` that is left out in training."""
    keys: UInt32[Array, "... examples"] | None = None
    """Random key of each example's dropout mask; None for no dropout."""
    first: Array | None = None
    """Position in the sequence of the input's first row, if the input is a chunk of the sequence."""


def from_position(tree: Any, first: Array) -> Any:
    """Returns the parameters for an input that begins at position `first` of the sequence, for dropout's masks."""

    def told(leaf: Any) -> Any:
        return replace(leaf, first=first) if isinstance(leaf, Adapted) and leaf.keys is not None else leaf

    return jax.tree.map(told, tree, is_leaf=lambda leaf: isinstance(leaf, Adapted))


def linear(x: Float[Array, "... inner"], kernel: Any, compute: Form | Compute) -> Float[Array, "... cols"]:
    """Returns `x @ kernel` for any form of the kernel: an array, frozen in fewer bits, or adapted."""
    if isinstance(kernel, Adapted):
        rows = x.reshape(-1, x.shape[-1])
        kind = _Kind(kernel.scale, kernel.dropout, Form.of(compute))
        product: Any = _adapted(rows, kernel.base, kernel.a, kernel.b, _keys_of_rows(kernel, x.shape), kind)
        return jnp.reshape(product, (*x.shape[:-1], -1))
    if isinstance(kernel, Packed) or on_host(kernel):
        return frozen_dot(x, kernel, compute)
    return dot(x, kernel, compute)


class _Kind(NamedTuple):
    """Settings of a product with an adapter, as a hashable static argument."""

    scale: float
    dropout: float
    form: Form

    def dropped(self, x: Array, keys: Array | None) -> Array:
        """Applies dropout to `x`: each row's mask is a hash of its key. The gradient of `x` gets the same masks."""
        if keys is None:
            return x
        columns = jnp.arange(x.shape[1], dtype=jnp.uint32)
        bits = random_bits(keys[:, None], columns[None, :])
        kept = bits >= jnp.uint32(min(round(self.dropout * 2**32), 2**32 - 1))
        return jnp.where(kept, x * jnp.asarray(1 / (1 - self.dropout), x.dtype), jnp.zeros((), x.dtype))

    def reduced(self, x: Array, a: Array, keys: Array | None) -> Array:
        """Returns `scale * dropped(x) @ a`, of shape (rows, rank)."""
        form = self.form
        product = form.contract(form.operand(self.dropped(x, keys)), form.operand(a), b_axis=-2)
        return form.operand(self.scale * product)


def _keys_of_rows(kernel: Adapted, shape: tuple[int, ...]) -> Array | None:
    """Returns a random key for each row of an input of (examples, positions, inner); None without dropout."""
    if kernel.keys is None or not kernel.dropout:
        return None
    positions = jnp.arange(math.prod(shape[1:-1])) + (0 if kernel.first is None else kernel.first)
    return random_bits(kernel.keys[:, None], positions.astype(jnp.uint32)[None, :]).reshape(-1)


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _adapted(x: Array, base: Any, a: Array, b: Array, keys: Array | None, kind: _Kind) -> Array:
    form = kind.form
    added = form.contract(kind.reduced(x, a, keys), form.operand(b), b_axis=-2, to=x.dtype)
    return over_tiles(x, base, -2, form) + added


def _forward(x: Array, base: Any, a: Array, b: Array, keys: Array | None, kind: _Kind):
    return _adapted(x, base, a, b, keys, kind), (x, base, a, b, keys)


def _backward(kind: _Kind, kept: Any, grad: Array):
    x, base, a, b, keys = kept
    form, operand = kind.form, kind.form.operand(grad)
    reduced = kind.reduced(x, a, keys)
    towards_b = form.contract(form.transposed(reduced), operand, b_axis=-2, to=b.dtype)
    towards_reduced = form.operand(kind.scale * form.contract(operand, form.operand(b), b_axis=-1))
    dropped = form.operand(kind.dropped(x, keys))
    towards_a = form.contract(form.transposed(dropped), towards_reduced, b_axis=-2, to=a.dtype)
    through_a = form.contract(towards_reduced, form.operand(a), b_axis=-1, to=grad.dtype)
    towards_x = over_tiles(grad, base, -1, form) + kind.dropped(through_a, keys)
    return towards_x, None, towards_a, towards_b, None  # the base is frozen and has no gradient


_adapted.defvjp(_forward, _backward)


class LoRA:
    """Model and loss (`Task`) with learned adapters for those kernels of another model whose paths match a pattern.

    All weights of the other model are frozen. It must compute its products by `linear`.
    """

    def __init__(
        self,
        task: Task,
        targets: str,
        *,
        rank: int,
        alpha: float | None = None,
        rslora: bool = False,
        dropout: float = 0.0,
    ) -> None:
        """Wraps a task.

        Args:
            task: The model and loss (`Task`) whose weights are frozen.
            targets: Kernels that get an adapter: a value of `--lora-targets`, like `q,v` or `all-linear`.
            rank: Columns of `a` and rows of `b`.
            alpha: Scale of the adapter before division by the rank; by default the rank.
            rslora: Whether to divide by the square root of the rank instead.
            dropout: Share of the input of `a` that is left out in training.

        Raises:
            RecipeError: A number is out of its bounds, or `targets` is no regular expression.
        """
        if rank < 1:
            raise RecipeError(f"the rank of LoRA must be 1 or more, got {rank}")
        if not 0 <= dropout < 1:
            raise RecipeError(f"--lora-dropout must be at least 0 and below 1, got {dropout:g}")
        self.task, self.patterns, self.rank, self.dropout = task, patterns_of(targets), rank, dropout
        self.scale = (rank if alpha is None else alpha) / (math.sqrt(rank) if rslora else rank)
        if isinstance(task, Stacks):
            self.stacked = task.stacked

    def init(self, key: Array) -> Params:
        base_key, key = jax.random.split(key)
        params = self.task.init(base_key)
        learned: dict[str, dict[str, Array]] = {}
        for number, (name, (*lead, inner, cols)) in enumerate(self.adapted_shapes(params["trainable"]).items()):
            bound = inner**-0.5  # PEFT: kaiming_uniform_ with a = sqrt(5)
            a = jax.random.uniform(
                jax.random.fold_in(key, number), (*lead, inner, self.rank), minval=-bound, maxval=bound
            )
            learned[name] = {"a": a, "b": jnp.zeros((*lead, self.rank, cols))}
        return {"trainable": learned, "frozen": {"base": params["trainable"], "frozen": params.get("frozen", {})}}

    def adapted_shapes(self, weights: Any) -> dict[str, tuple[int, ...]]:
        """Returns the shape of every kernel that gets an adapter, by path (`kernels_to_adapt`)."""
        leaves = {
            jax.tree_util.keystr(path, simple=True, separator="/"): tuple(leaf.shape)
            for path, leaf in jax.tree_util.tree_flatten_with_path(weights)[0]
        }
        return kernels_to_adapt(leaves, self.patterns, self.rank)

    def loss(
        self, params: Params, carry: Carry, batch: Batch, keys: Array, *, train: bool
    ) -> tuple[LossSum, Carry, Metrics]:
        whole: Params = {"trainable": self.adapted(params, keys if train else None)}
        if params["frozen"]["frozen"]:
            whole["frozen"] = params["frozen"]["frozen"]
        return self.task.loss(whole, carry, batch, keys, train=train)

    def stored(self, frozen: dict, bits: FrozenBits) -> dict:
        """Returns frozen weights in `bits` bits, in the wrapped model's own format if it has one (`StoresFrozen`)."""
        if not isinstance(self.task, StoresFrozen):
            return stored(frozen, bits)
        own = frozen["frozen"]
        return {"base": self.task.stored(frozen["base"], bits), "frozen": self.task.stored(own, bits) if own else own}

    def adapted(self, params: Params, keys: Array | None = None) -> Any:
        """Returns the base weights with their adapters, and with dropout if `keys` has one key for each example."""
        numbers = {name: number for number, name in enumerate(params["trainable"])}
        examples = None if keys is None or not self.dropout else jax.vmap(jax.random.bits)(keys)

        def adapted_leaf(path: Any, leaf: Any) -> Any:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            adapter = params["trainable"].get(name)
            if adapter is None:
                return jax.tree.map(jax.lax.stop_gradient, leaf)
            a, b = adapter["a"], adapter["b"]
            # The scale is static and the same in every layer, so that a scan can slice the other fields.
            adapted = Adapted(leaf, a, b, self.scale, self.dropout)
            return adapted if examples is None else replace(adapted, keys=_keys(examples, a.shape[:-2], numbers[name]))

        is_leaf = lambda leaf: isinstance(leaf, Packed)  # noqa: E731
        return jax.tree_util.tree_map_with_path(adapted_leaf, params["frozen"]["base"], is_leaf=is_leaf)


def _keys(examples: UInt32[Array, " examples"], lead: tuple[int, ...], number: int) -> UInt32[Array, "... examples"]:
    """Returns the PRNG keys for the dropout of adapter `number`: one for each layer (axes `lead`) and example."""
    own = np.arange(math.prod(lead), dtype=np.uint32) + np.uint32((number * GOLDEN) % 2**32)
    return random_bits(examples[None, :], jnp.asarray(own)[:, None]).reshape(*lead, -1)
