"""Grouped convolutions weighed on this CPU: the bytes that each takes beside its operands and its result.

Eigen works at many groups at once, and how many of them have packed their rows is chance: of 128 groups between 2 and
37 % (notes, "What the compiler does not count: convolutions"). So a process of its own runs each of them, as it
was compiled, and reads its peak.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import jax
import jax.numpy as jnp

from plimsoll.errors import PlimsollError
from plimsoll.planner import host
from plimsoll.planner.hlo.convolutions import Convolution
from plimsoll.processes.request import ask
from plimsoll.training import memory, program

RUNS = 3
"""Weighed runs of each convolution, of which the highest counts. A run before them loads the libraries' code."""
RUNS_SECONDS = 10.0
"""Seconds of one after which it is not run again. Depthwise ones take a thousand times as long as others do."""
ASKED_SECONDS = 120.0
"""Seconds in which all of them are weighed, or none."""
AXES = {1: ("NHC", "HIO", "NHC"), 2: ("NHWC", "HWIO", "NHWC"), 3: ("NHWDC", "HWDIO", "NHWDC")}
"""The order in which XLA gives axes to Eigen, by the number of axes of an image."""


def weighed(convolutions: Iterable[Convolution]) -> dict[Convolution, int]:
    """Returns the bytes of each beside its arrays; the most that they may be where this machine cannot see it."""
    sizes = {convolution: convolution.most_bytes for convolution in convolutions}

    # Those that this machine has the memory to run; only Linux can reset a peak.
    room = host.available_bytes() if sys.platform == "linux" else 0
    small = [convolution for convolution, most in sizes.items() if convolution.array_bytes + most <= room]
    if not small:
        return sizes

    request = {"convolutions": [asdict(convolution) for convolution in small]}
    with suppress(PlimsollError):  # too slow, or killed for its memory
        answer = ask("weigh", request, seconds=ASKED_SECONDS)
        sizes |= zip(small, answer["bytes"], strict=True)
    return sizes


def weigh(request: Mapping[str, Any]) -> dict[str, list[int]]:
    """Returns the bytes that each of the `convolutions` takes in this process, which answers nothing else."""
    return {"bytes": [_weigh(Convolution(**fields)) for fields in request["convolutions"]]}


def _weigh(convolution: Convolution) -> int:
    """Returns the most bytes by which the resident set grew in a run, without those that the compiler counts."""
    # The step, of this convolution alone.
    dtype = jnp.float16 if convolution.itemsize == 2 else jnp.float32
    operand = jnp.ones((convolution.batch, *convolution.operand, convolution.channels), dtype)
    kernel = jnp.ones((*convolution.kernel, convolution.channels // convolution.groups, convolution.filters), dtype)

    def convolve(operand: jax.Array, kernel: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            operand,
            kernel,
            window_strides=convolution.strides,
            padding=convolution.padding,
            lhs_dilation=convolution.dilation,
            rhs_dilation=convolution.kernel_dilation,
            dimension_numbers=AXES[len(convolution.operand)],
            feature_group_count=convolution.groups,
        )

    step = program.compiled(jax.jit(convolve).lower(operand, kernel))
    stats = step.memory_analysis()
    assert stats is not None
    counted = stats.temp_size_in_bytes + stats.output_size_in_bytes

    # Its runs.
    sizes: list[int] = []
    began = time.monotonic()
    while not sizes or (len(sizes) <= RUNS and time.monotonic() - began < RUNS_SECONDS):
        memory.trim_heap()
        before = memory.settle()
        memory.forget_peak()
        jax.block_until_ready(step(operand, kernel))
        sizes.append(memory.peak_resident_bytes() - before - counted)
    return max(0, *(sizes[1:] or sizes))
