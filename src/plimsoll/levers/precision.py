"""Dots in float32, TF32, bfloat16 or float16, over float32 weights and sums.

`float32` asks for float32 products on every backend (`precision="highest"`: by default a TPU multiplies in bfloat16 and
a recent NVIDIA card in TF32). `bfloat16` rounds the operands to bfloat16 and sums in float32: half the bytes of
operands kept for the backward pass, and twice the speed on a CPU that has AVX512-BF16.

`tf32` leaves the operands in float32 and lets an NVIDIA card (Ampere or later) drop 13 bits of their mantissas in its
tensor cores: no bytes saved, and about half the speed of bfloat16. `float16` is for cards without bfloat16 (Turing):
the same bytes and speed, three bits more of mantissa, but nothing above 65,504 and little below 6e-5. Gradients fit
into that range only when they are scaled (levers/loss_scale.py).

XLA for CPU would convert bfloat16 operands back to float32. Two things prevent that: `preferred_element_type=float32`
and, for the weight gradient, a row-major layout of the transposed operand (`Form.transposed`). Leave bfloat16 off if
the chip has no bfloat16 units: it then only costs time.

A product returns the type of its first factor, float32 or bfloat16 (levers/activations.py), and sums in float32. The
gradient of an array has the array's type. The last argument of a dot, `compute`, has precision and platform.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float

from plimsoll.errors import PlimsollError
from plimsoll.types import Compute, Precision

ROUNDED = {"bfloat16": jnp.bfloat16, "float16": jnp.float16}
"""Type to which operands are rounded, by precision. Other precisions leave operands in float32."""
PRODUCTS = {"float32": lax.Precision.HIGHEST, "tf32": lax.DotAlgorithmPreset.TF32_TF32_F32}
"""Argument `precision` of `lax.dot_general`, by precision. Rounded operands need none."""


def rounded(x: Array, precision: Precision) -> Array:
    """Casts `x`, for example a weight stored in bfloat16, to the operand type of dots in `precision`."""
    return x.astype(ROUNDED.get(precision, jnp.float32))


def dot(
    x: Float[Array, "... rows inner"],
    kernel: Float[Array, "inner cols"],
    compute: Form | Compute,
) -> Float[Array, "... rows cols"]:
    """Returns `x @ kernel` in the type of `x`; leading axes of `x` are rows."""
    rows = x.reshape(-1, x.shape[-1])
    return jnp.reshape(_product(rows, kernel, -2, Form.of(compute)), (*x.shape[:-1], kernel.shape[-1]))


def dot_rows(
    x: Float[Array, "... rows inner"],
    table: Float[Array, "cols inner"],
    compute: Form | Compute,
) -> Float[Array, "... rows cols"]:
    """Returns `x @ table.T` without a transposed copy of the table: the output layer over tied embeddings."""
    rows = x.reshape(-1, x.shape[-1])
    return jnp.reshape(_product(rows, table, -1, Form.of(compute)), (*x.shape[:-1], table.shape[0]))


def dot_columns(
    kernel: Float[Array, "inner rows"],
    x: Float[Array, "inner ..."],
    compute: Form | Compute,
) -> Float[Array, "rows ..."]:
    """Returns `kernel.T @ x` in the type of `x`. It sums over the first axis of both, so that `x` is not transposed."""
    columns = x.reshape(x.shape[0], -1)
    return jnp.reshape(_product_columns(kernel, columns, Form.of(compute)), (-1, *x.shape[1:]))


def batched_dot(
    a: Float[Array, "batch rows inner"],
    b: Float[Array, "batch inner cols"],
    compute: Form | Compute,
) -> Float[Array, "batch rows cols"]:
    """Returns `a @ b` per batch entry; both factors have the same type."""
    return _product(a, b, -2, Form.of(compute))


def batched_dot_rows(
    a: Float[Array, "batch rows inner"],
    b: Float[Array, "batch cols inner"],
    compute: Form | Compute,
) -> Float[Array, "batch rows cols"]:
    """Returns `a @ b.T` per batch entry, as for attention's scores."""
    return _product(a, b, -1, Form.of(compute))


class Form(NamedTuple):
    """Precision and platform of a dot, as a hashable static argument for `custom_vjp`."""

    precision: Precision
    platform: str

    @classmethod
    def of(cls, compute: Form | Compute) -> Form:
        return cls(compute.precision, compute.platform)

    def operand(self, x: Array) -> Array:
        return rounded(x, self.precision)

    def transposed(self, x: Array) -> Array:
        """Swaps the last two axes. On a CPU it also fixes the result's layout, for a fast bfloat16 dot."""
        swapped = jnp.swapaxes(x, -1, -2)
        if self.platform != "cpu":
            return swapped
        return with_layout_constraint(swapped, Layout(tuple(range(swapped.ndim))))

    def contract(self, a: Array, b: Array, *, b_axis: int, to: Any = jnp.float32) -> Array:
        """Sums over the last axis of `a` and axis `b_axis` (from the end) of `b`; leading axes are a batch.

        The result has the type `to`. Sums are float32 in any case; an accelerator rounds them on writing.
        """
        batch = tuple(range(a.ndim - 2))
        axes = (((a.ndim - 1,), (b.ndim + b_axis,)), (batch, batch))
        if self.precision == "tf32" and self.platform != "gpu":
            raise PlimsollError(
                f"only NVIDIA GPUs compute in tf32, and this is a {self.platform}: take float32, or bfloat16"
            )
        products = PRODUCTS.get(self.precision)
        written = jnp.float32 if self.platform == "cpu" else to
        return lax.dot_general(a, b, axes, precision=products, preferred_element_type=written).astype(to)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _product(a: Array, b: Array, b_axis: int, form: Form) -> Array:
    return form.contract(form.operand(a), form.operand(b), b_axis=b_axis, to=a.dtype)


def _product_forward(a: Array, b: Array, b_axis: int, form: Form):
    kept_b = form.operand(b) if b.ndim > 2 else b  # a weight (2 axes) is in memory anyway; an activation is rounded
    return _product(a, b, b_axis, form), (form.operand(a), kept_b)


def _product_backward(b_axis: int, form: Form, kept, grad: Array):
    a, b = kept
    of_activations, grad = grad.dtype, form.operand(grad)
    grad_a = form.contract(grad, form.operand(b), b_axis=-1 if b_axis == -2 else -2, to=of_activations)
    left, right = (a, grad) if b_axis == -2 else (grad, a)
    of_b = b.dtype if b.ndim == 2 else of_activations  # a kept activation is rounded, so its dtype is not the original
    return grad_a, form.contract(form.transposed(left), right, b_axis=-2, to=of_b)


_product.defvjp(_product_forward, _product_backward)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _product_columns(kernel: Array, x: Array, form: Form) -> Array:
    return form.contract(form.transposed(form.operand(kernel)), form.operand(x), b_axis=-2, to=x.dtype)


def _product_columns_forward(kernel: Array, x: Array, form: Form):
    return _product_columns(kernel, x, form), (kernel, form.operand(x))


def _product_columns_backward(form: Form, kept, grad: Array):
    kernel, x = kept
    of_activations, grad = grad.dtype, form.operand(grad)
    grad_x = form.contract(form.operand(kernel), grad, b_axis=-2, to=of_activations)
    return form.contract(x, grad, b_axis=-1, to=kernel.dtype), grad_x


_product_columns.defvjp(_product_columns_forward, _product_columns_backward)
