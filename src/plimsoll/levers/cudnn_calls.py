"""Calls of cuDNN's attention kernels: their settings, and what they take.

XLA takes the kernels as custom calls whose settings are JSON. They are written here and not by
`jax.nn.dot_product_attention`, which cannot say of the backward pass that it is to add in one order
(`force_deterministic`). XLA says it itself where a step is compiled to be deterministic, but, in jaxlib 0.11 as in
0.12, only of the first of several equal calls: the others then ask for a kernel that nobody made, and a model whose
layers are compiled one after another ends at its first step with "IndexError: raw_hash_map<>::at" (openxla/xla #46500;
seen on an H200, notes, "On an H200").

An array is (batch, length, heads, width), as `jax.nn.dot_product_attention` has it. Keys and values may have fewer
heads than queries: each serves queries that follow one another. Types are bfloat16 or float16; sums, and the logarithm
of each row's sum that the backward pass needs, are float32.
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
"""Of XLA's custom calls whose settings are a string."""
HEADS_INSIDE = (0, 2, 1, 3)
"""Order in memory of what a kernel returns as (batch, heads, length, width): that of its arguments."""
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
"""Of the scores, which are in no memory."""
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
"""Of a kernel, by XLA's names: axes of left and right that are summed over, and those of the batch; each a digit."""


def forward(
    query: Positions, key: Positions, value: Positions, lengths: Lengths | None, call: Call, *, training: bool
) -> list[Array]:
    """Returns what is attended, and for training the logarithms of the sums, float32 (batch, heads, length)."""
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
    """Returns a call of a kernel: from its arguments to its results `by_heads`, `others`, and the workspace."""
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
    """Returns the gradients of query, key and value: one call of the kernel."""
    like = [jax.eval_shape(lambda x: x.swapaxes(1, 2), x) for x in (query, key, value)]
    settings = _settings(query, key, lengths, call, backward=True)
    ask = _kernel(BACKWARD, settings, like, [], workspace=workspace_bytes(query.shape, key.shape, call))
    *gradients, _ = ask(query, key, value, sums, towards, mixed, *_twice(lengths))
    return tuple(gradient.swapaxes(1, 2) for gradient in gradients)


def _twice(lengths: Lengths | None) -> list[Array]:
    """Returns the lengths of queries and of keys."""
    return [] if lengths is None else [lengths, lengths]


def _settings(query: Positions, key: Positions, lengths: Lengths | None, call: Call, *, backward: bool) -> str:
    """Returns the settings of a call, as XLA's `GpuBackendConfig` has them in JSON."""
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
