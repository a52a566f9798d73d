"""Dots in float32, TF32, bfloat16 or float16, over float32 weights and sums.

`exact` asks for float32 products on every backend (`precision="highest"`: by default a TPU multiplies
in bfloat16 and a recent NVIDIA card in TF32). `mixed` rounds the operands to bfloat16 and sums in float32:
half the bytes of what the backward pass keeps, and twice the speed on a CPU that has AVX512-BF16.

`tf32` leaves the operands in float32 and lets an NVIDIA card (Ampere or later) drop 13 bits of their mantissas on the
way into its tensor cores: no bytes saved, and about half the speed of bfloat16. `float16` is for cards without
bfloat16 (Turing): the same bytes and speed, three bits more of mantissa, but nothing above 65,504 and little below
6e-5. Gradients fit into that range only when they are scaled (levers/loss_scale.py).

Two things make the bfloat16 form fast on a CPU, where XLA otherwise converts back to float32:
`preferred_element_type=float32`, and, for the weight gradient, a row-major layout for the transposed
operand (`Form.transposed`). Leave bfloat16 off where the chip has no bfloat16 units: it then only costs time.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float

from plimsoll.errors import PlimsollError
from plimsoll.types import Precision

ROUNDED = {"bfloat16": jnp.bfloat16, "float16": jnp.float16}
"""What operands are converted to; other precisions leave them in float32."""
PRODUCTS = {"float32": lax.Precision.HIGHEST, "tf32": lax.DotAlgorithmPreset.TF32_TF32_F32}
"""What the backend is asked for; rounded operands have one way to be multiplied only."""


def rounded(x: Array, precision: Precision) -> Array:
    """Returns what a dot in this precision reads of an array, which may be a weight that is kept in bfloat16."""
    return x.astype(ROUNDED.get(precision, jnp.float32))


def dot(
    x: Float[Array, "... rows inner"],
    kernel: Float[Array, "inner cols"],
    *,
    precision: Precision,
    platform: str,
) -> Float[Array, "... rows cols"]:
    """Returns `x @ kernel`, float32 in and out; leading axes of `x` are rows."""
    rows = x.reshape(-1, x.shape[-1])
    return jnp.reshape(_product(rows, kernel, -2, Form(precision, platform)), (*x.shape[:-1], kernel.shape[-1]))


def dot_rows(
    x: Float[Array, "... rows inner"],
    table: Float[Array, "cols inner"],
    *,
    precision: Precision,
    platform: str,
) -> Float[Array, "... rows cols"]:
    """Returns `x @ table.T` without a transposed copy of the table: the output layer over tied embeddings."""
    rows = x.reshape(-1, x.shape[-1])
    return jnp.reshape(_product(rows, table, -1, Form(precision, platform)), (*x.shape[:-1], table.shape[0]))


def dot_columns(
    kernel: Float[Array, "inner rows"],
    x: Float[Array, "inner ..."],
    *,
    precision: Precision,
    platform: str,
) -> Float[Array, "rows ..."]:
    """Returns `kernel.T @ x`: the first axis of `x` is summed over, and nothing is transposed."""
    columns = x.reshape(x.shape[0], -1)
    return jnp.reshape(_product_columns(kernel, columns, Form(precision, platform)), (-1, *x.shape[1:]))


def batched_dot(
    a: Float[Array, "batch rows inner"],
    b: Float[Array, "batch inner cols"],
    *,
    precision: Precision,
    platform: str,
) -> Float[Array, "batch rows cols"]:
    """Returns one dot per batch entry, float32 in and out."""
    return _product(a, b, -2, Form(precision, platform))


def batched_dot_rows(
    a: Float[Array, "batch rows inner"],
    b: Float[Array, "batch cols inner"],
    *,
    precision: Precision,
    platform: str,
) -> Float[Array, "batch rows cols"]:
    """Returns `a @ b.T` per batch entry: attention's scores."""
    return _product(a, b, -1, Form(precision, platform))


class Form(NamedTuple):
    """Form of a dot: hashable, so that it can be static under `custom_vjp`."""

    precision: Precision
    platform: str

    def operand(self, x: Array) -> Array:
        return rounded(x, self.precision)

    def transposed(self, x: Array) -> Array:
        """Swaps the last two axes; on CPU also pins the result's layout, without which a bfloat16 dot goes slow."""
        swapped = jnp.swapaxes(x, -1, -2)
        if self.platform != "cpu":
            return swapped
        return with_layout_constraint(swapped, Layout(tuple(range(swapped.ndim))))

    def contract(self, a: Array, b: Array, *, b_axis: int) -> Array:
        """Sums over the last axis of `a` and axis `b_axis` (from the end) of `b`; leading axes are a batch."""
        batch = tuple(range(a.ndim - 2))
        axes = (((a.ndim - 1,), (b.ndim + b_axis,)), (batch, batch))
        if self.precision == "tf32" and self.platform != "gpu":
            raise PlimsollError(
                f"precision tf32 is arithmetic of NVIDIA GPUs, and this is a {self.platform}: take float32, or bfloat16"
            )
        products = PRODUCTS.get(self.precision)
        return lax.dot_general(a, b, axes, precision=products, preferred_element_type=jnp.float32)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _product(a: Array, b: Array, b_axis: int, form: Form) -> Array:
    return form.contract(form.operand(a), form.operand(b), b_axis=b_axis)


def _product_forward(a: Array, b: Array, b_axis: int, form: Form):
    a = form.operand(a)
    kept_b = form.operand(b) if b.ndim > 2 else b  # a weight is alive anyway; an activation is kept small
    return form.contract(a, form.operand(b), b_axis=b_axis), (a, kept_b)


def _product_backward(b_axis: int, form: Form, kept, grad: Array):
    a, b = kept
    grad = form.operand(grad)
    grad_a = form.contract(grad, form.operand(b), b_axis=-1 if b_axis == -2 else -2)
    left, right = (a, grad) if b_axis == -2 else (grad, a)
    return grad_a, _like(form.contract(form.transposed(left), right, b_axis=-2), b)


def _like(grad: Array, kept: Array) -> Array:
    """Returns a weight's gradient in the type that the weight is kept in; an activation's as it is."""
    return grad.astype(kept.dtype) if kept.ndim == 2 else grad


_product.defvjp(_product_forward, _product_backward)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _product_columns(kernel: Array, x: Array, form: Form) -> Array:
    return form.contract(form.transposed(form.operand(kernel)), form.operand(x), b_axis=-2)


def _product_columns_forward(kernel: Array, x: Array, form: Form):
    x = form.operand(x)
    return form.contract(form.transposed(form.operand(kernel)), x, b_axis=-2), (kernel, x)


def _product_columns_backward(form: Form, kept, grad: Array):
    kernel, x = kept
    grad = form.operand(grad)
    grad_x = form.contract(form.operand(kernel), grad, b_axis=-2)
    return _like(form.contract(x, grad, b_axis=-1), kernel), grad_x


_product_columns.defvjp(_product_columns_forward, _product_columns_backward)
