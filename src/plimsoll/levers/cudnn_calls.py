"""Calls of cuDNN's attention kernels: settings and arguments.

XLA calls the kernels as custom calls whose settings are JSON. This module writes the settings, because
`jax.nn.dot_product_attention` has no option for a backward pass that adds in a fixed order (`force_deterministic`). XLA
sets that option itself when a step is compiled to be deterministic, but in jaxlib 0.11 and 0.12 only in the first of
several equal calls. The others then ask for a kernel that does not exist: a model with unrolled layers ends at its
first step with "IndexError: raw_hash_map<>::at" (openxla/xla #46500; seen on an H200, notes, "On an H200").

Arrays are (batch, length, heads, width), as in `jax.nn.dot_product_attention`. Keys and values may have fewer heads
than queries: each then serves several consecutive heads of queries. Types are bfloat16 or float16. Sums are float32, as
is the logarithm of each row's sum that the backward pass needs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from plimsoll.levers.cudnn_workspace import Call, workspace_bytes

Positions = Float[Array, "batch length heads width"]
Logarithms = Float[Array, "batch heads length"]
Lengths = Int[Array, " batch"]

FORWARD, BACKWARD = "__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"
API_VERSION = 2
"""Version of XLA's custom-call API in which settings are a string."""
HEADS_INSIDE = (0, 2, 1, 3)
"""Memory layout of results of shape (batch, heads, length, width): (batch, length, heads, width), as the arguments."""
ALGORITHM = {
    "algo_id": "0",
    "math_type": "TENSOR_OP_MATH",
    "tuning_knobs": {"17": "1", "24": "0"},
    "is_cudnn_frontend": True,
    "workspace_size": "0",
}
LAYOUT = {
    "minor_to_major": ["3", "2", "1", "0"],
    "element_size_in_bits": "0",
    "memory_space": "0",
    "index_primitive_type": "PRIMITIVE_TYPE_INVALID",
    "pointer_primitive_type": "PRIMITIVE_TYPE_INVALID",
    "dynamic_shape_metadata_prefix_bytes": "0",
}
"""Layout that the settings must name for the scores, although they are never in memory."""
SUMMED_AND_BATCHED = (
    "lhs_contracting_dimensions", "rhs_contracting_dimensions", "lhs_batch_dimensions", "rhs_batch_dimensions"
)  # fmt: skip
PRODUCTS = {
    "bmm1": ("3", "3", "02", "02"),
    "bmm2": ("3", "1", "01", "02"),
    "bmm1_grad_gemm1": ("2", "1", "01", "02"),
    "bmm1_grad_gemm2": ("3", "1", "01", "02"),
    "bmm2_grad_gemm1": ("2", "1", "01", "02"),
    "bmm2_grad_gemm2": ("3", "3", "02", "02"),
}
"""Axes of each product inside a kernel, by XLA's name: summed axis of the left and of the right factor, then batch axes
of the left and of the right factor. Each digit is an axis."""


def forward(
    query: Positions, key: Positions, value: Positions, lengths: Lengths | None, call: Call, *, training: bool
) -> list[Array]:
    """Returns the result of attention; for training also each query's log-sum-exp: float32 (batch, heads, length)."""
    batch, length, heads, _ = query.shape
    mixed = jax.ShapeDtypeStruct((batch, heads, length, value.shape[-1]), query.dtype)
    sums = [jax.ShapeDtypeStruct((batch, heads, length), jnp.float32)] if training else []
    settings = _settings(query, key, lengths, call, backward=False)
    first, *others = _kernel(FORWARD, settings, [mixed], sums, workspace=0)(query, key, value, *_twice(lengths))
    return [first.swapaxes(1, 2), *others[:-1]]


def _kernel(
    name: str,
    settings: str,
    by_heads: list[jax.ShapeDtypeStruct],
    others: list[jax.ShapeDtypeStruct],
    *,
    workspace: int,
) -> Callable[..., Any]:
    """Returns a function that calls a kernel. Its results are shaped like `by_heads`, `others`, and the workspace."""
    return jax.ffi.ffi_call(
        name,
        [*by_heads, *others, jax.ShapeDtypeStruct((workspace,), jnp.uint8)],
        output_layouts=[HEADS_INSIDE] * len(by_heads) + [None] * (len(others) + 1),
        custom_call_api_version=API_VERSION,
        legacy_backend_config=settings,
    )


def pull(
    call: Call,
    query: Positions,
    key: Positions,
    value: Positions,
    mixed: Positions,
    towards: Positions,
    sums: Array,
    lengths: Lengths | None = None,
) -> tuple[Array, ...]:
    """Returns the gradients of query, key and value, from one call of the kernel."""
    like = [jax.eval_shape(lambda x: x.swapaxes(1, 2), x) for x in (query, key, value)]
    settings = _settings(query, key, lengths, call, backward=True)
    ask = _kernel(BACKWARD, settings, like, [], workspace=workspace_bytes(query.shape, key.shape, call))
    *gradients, _ = ask(query, key, value, sums, towards, mixed, *_twice(lengths))
    return tuple(gradient.swapaxes(1, 2) for gradient in gradients)


def _twice(lengths: Lengths | None) -> list[Array]:
    """Returns the lengths twice, for queries and keys; nothing for None."""
    return [] if lengths is None else [lengths, lengths]


def _settings(query: Positions, key: Positions, lengths: Lengths | None, call: Call, *, backward: bool) -> str:
    """Returns the settings of a call: the JSON of XLA's `GpuBackendConfig`."""
    batch, length, heads, _ = query.shape
    causal, padded = ("CAUSAL" if call.causal else ""), ("PADDING" if lengths is not None else "")
    settings: dict[str, Any] = {
        "algorithm": ALGORITHM,
        "fmha_scale": call.scale,
        "intermediate_tensor_shape": {
            "element_type": {"bfloat16": "BF16", "float16": "F16"}[query.dtype.name],
            "dimensions": [str(side) for side in (batch, heads, length, key.shape[1])],
            "layout": LAYOUT,
            "is_dynamic_dimension": [False] * 4,
        },
        "is_flash_attention": True,
        "mask_type": "_".join(word for word in (padded, causal) if word) or "NO_MASK",
        "dropout_rate": 0.0,
        "seed": 42,
        "sliding_window_length": call.window,
        "max_seg_per_batch": 1,
        "is_paged_attention": False,
    }
    for name, axes in PRODUCTS.items():
        if backward == ("grad" in name):
            settings[f"{name}_dot_dimension_numbers"] = dict(zip(SUMMED_AND_BATCHED, map(list, axes), strict=True))
    if backward and call.deterministic:
        settings["force_deterministic"] = True
    return json.dumps({"operation_queue_id": "0", "cudnn_fmha_backend_config": settings})
