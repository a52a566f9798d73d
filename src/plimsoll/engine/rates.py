"""Measurements of this machine's CPU or GPU: FLOP/s, memory bandwidth, and overheads in seconds.

On a CPU single calls are timed. On a GPU a matmul of 1,024 rows takes about 1 us, but launching it and waiting for it
takes about 100 us. Timed one by one, matmuls would seem a hundred times slower than they are. So a single compiled call
repeats the matmul for `CALL_SECONDS`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from plimsoll.levers.precision import Form, dot
from plimsoll.planner import chips
from plimsoll.planner.types import Rates
from plimsoll.training.reports import numbers_of
from plimsoll.units import GIB, MIB

CPU_CALLS = 400
"""Number of timed calls of an almost empty step, to measure the overhead of a call. Takes a tenth of a second."""
TOUCHED = 64 * MIB
"""Bytes of a new array whose first write is timed, to measure page faults. The array uses huge pages, as in training
(environment.py)."""

CALL_SECONDS = 0.2
"""Least duration of a timed call on a GPU: some thousand times the cost of launching it and waiting for it."""
CALLS = 5
"""Number of timed calls on a GPU. The fastest counts, because other load on the GPU only slows calls down."""
SIDE = 8192
"""Rows and columns of the matrices in a timed matmul, enough to keep a GPU busy. A small GPU gets fewer."""
COPIED_BYTES, SENT_BYTES = GIB, 256 * MIB
"""Bytes of the array that is copied within the GPU's memory, and of the array that is sent from host to GPU."""
IN_A_ROUND = 2
"""Number of matmuls in a round (iteration) of the timed loop. With one, the compiler would copy each result."""
SMALL, LAUNCHES = 2**14, 100
"""Elements of an array so small that a kernel on it is mostly launch overhead; number of such kernels in a round."""
DOTS: Mapping[str, tuple[Any, Any]] = {
    "float32": (jnp.float32, jax.lax.Precision.HIGHEST),
    "tf32": (jnp.float32, jax.lax.DotAlgorithmPreset.TF32_TF32_F32),
    "bfloat16": (jnp.bfloat16, None),
    "float16": (jnp.float16, None),
}
"""Map from precision to the dtype of a matmul's operands and the `precision` argument of `jnp.dot`."""

Clock = Callable[[], float]
"""Function that returns a time in seconds."""


def cpu_rates() -> Rates:
    """Measures the speed of matmuls, copies and page faults on this CPU, and overheads. Takes about two seconds."""
    # Time matmuls of each precision in turn.
    rows, inner, columns = 1024, 512, 1024
    random = np.random.default_rng(0)
    x = random.standard_normal((rows, inner), np.float32)
    kernel = random.standard_normal((inner, columns), np.float32)
    precisions = ("float32", "bfloat16")
    dots = [jax.jit(partial(dot, compute=Form(precision, "cpu"))) for precision in precisions]
    dot_seconds = seconds_of(*(_ready(each, x, kernel) for each in dots))
    work = 2.0 * rows * inner * columns
    flops = {precision: work / seconds for precision, seconds in zip(precisions, dot_seconds, strict=True)}

    # Time copies, and the first write to new memory.
    large = np.ones(16 * MIB, np.float32)
    (copy_seconds,) = seconds_of(_ready(jax.jit(lambda a: a + 1), large))
    (touch_seconds,) = seconds_of(lambda: np.ones(TOUCHED, np.uint8), rounds=8)
    copied = 2 * large.nbytes / copy_seconds
    return Rates(
        flops=flops,
        copy_bytes=copied,
        link_bytes=copied,  # between devices that are all this CPU
        first_touch_bytes=TOUCHED / touch_seconds,
        loop_seconds=0.0,
        dot_seconds=_dot_seconds(flops["float32"]),
        call_seconds=_call_seconds(),
        source="measured here",
    )


def _dot_seconds(flops: float) -> float:
    """Measures the overhead in seconds of a small matmul besides its arithmetic, in the gradient of a small MLP.

    The MLP is as small as with a micro-batch of a few rows. In a larger MLP slow arithmetic would count as overhead: a
    predicted step of a thousand micro-batches would contain this error a thousand times.

    Args:
        flops: FLOP/s of float32 matmuls.
    """
    rows, width, layers = 64, 64, 8
    random = np.random.default_rng(0)
    kernels = list(random.standard_normal((layers, 2, width, width), np.float32) / math.sqrt(width))

    def loss(kernels: Sequence[jax.Array], x: jax.Array) -> jax.Array:
        for kernel in kernels:
            normed = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5)
            x = x + jax.nn.silu(normed @ kernel[0]) @ kernel[1]
        return jnp.sum(x * x)

    gradient = _ready(jax.jit(jax.grad(loss)), kernels, random.standard_normal((rows, width), np.float32))
    count = 3 * 2 * layers - 1  # the first matmul needs no gradient of its input
    (seconds,) = seconds_of(gradient)
    return max(0.0, seconds / count - 2 * rows * width * width / flops)


def _call_seconds() -> float:
    """Measures the overhead in seconds of a step: the call with NumPy arrays, and reading the metrics.

    The state has as many arrays as three small layers under Adam, because each argument costs about 2 us.
    """
    state: list[Any] = [jnp.zeros(8) for _ in range(3 * 2 * 3 + 2)]
    batch = {"x": np.ones((64, 8), np.float32), "y": np.ones(64, np.float32)}

    def step(state: list[jax.Array], batch: Mapping[str, jax.Array]) -> tuple[list[jax.Array], dict[str, jax.Array]]:
        loss, weight = jnp.sum(batch["x"]), jnp.sum(batch["y"])
        return [leaf + 1 for leaf in state], {"loss": loss, "weight": weight, "gradient_norm": loss}

    compiled = jax.jit(step, donate_argnums=0).lower(state, batch).compile()

    def call() -> None:
        nonlocal state
        state, report = compiled(state, batch)
        numbers_of(report)

    (seconds,) = seconds_of(call, rounds=CPU_CALLS)
    return seconds


def _ready(function: Any, *arguments: Any) -> Callable[[], Any]:
    """Compiles a jitted function. Returns a function without arguments that calls it and waits for the result."""
    on_device = [jax.device_put(argument) for argument in arguments]
    compiled = function.lower(*on_device).compile()
    return lambda: jax.block_until_ready(compiled(*on_device))


def seconds_of(*calls: Callable[[], Any], rounds: int = 12) -> list[float]:
    """Times each call `rounds` times, in turn, so that other work on the machine slows all calls alike.

    Returns the lower quartile of each call's seconds: a busy machine inflates the median, and clock errors spoil the
    minimum.
    """
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, of_call in zip(calls, times, strict=True):
            begin = time.perf_counter()
            call()
            of_call.append(time.perf_counter() - begin)
    return [sorted(of_call)[rounds // 4] for of_call in times]


def card_rates(clock: Clock = time.perf_counter) -> Rates:
    """Measures matmuls, copies, kernel launches and transfers from the host on the first GPU. Takes some seconds.

    Args:
        clock: Clock in seconds.

    Returns:
        Rates of the GPU, with FLOP/s of each precision that XLA supports on it. Links between GPUs are not measured.
    """
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 16 * GIB)
    side = next(n for n in (SIDE, SIDE // 2, SIDE // 4, SIDE // 8) if 12 * n * n <= limit // 4 or n == SIDE // 8)
    flops = {}
    for precision in DOTS:
        try:
            seconds = seconds_each(partial(products, _square(side, precision), precision), clock)
            flops[precision] = IN_A_ROUND * 2 * side**3 / seconds
        except (jax.errors.JaxRuntimeError, ValueError):  # XLA or JAX refuses a precision
            if precision == "float32":
                raise
    array = jax.jit(lambda: jnp.full(min(COPIED_BYTES, limit // 4) // 4, 1.0, jnp.float32))()
    copied = 2 * array.nbytes / seconds_each(partial(copies, array), clock)
    del array
    launch = seconds_each(partial(launches, jnp.ones(SMALL, jnp.float32)), clock) / LAUNCHES
    return Rates(
        flops=flops,
        copy_bytes=copied,
        first_touch_bytes=math.inf,
        loop_seconds=chips.LOOP_SECONDS,
        dot_seconds=launch,
        host_link_bytes=_host_link_bytes(min(SENT_BYTES, limit // 4), clock),
        source="measured here",
    )


def seconds_each(call: Callable[[int], object], clock: Clock) -> float:
    """Returns the seconds of one round of work.

    The number of rounds in a call grows until the call takes `CALL_SECONDS`. Launching and waiting are then negligible.

    Args:
        call: Does the given number of rounds, in one compiled function or as queued calls, and returns the result.
        clock: Clock in seconds.
    """

    def best(count: int) -> float:
        jax.block_until_ready(call(count))  # compiles, loads kernels
        times = []
        for _ in range(CALLS):
            started = clock()
            jax.block_until_ready(call(count))
            times.append(clock() - started)
        return min(times)

    count = 1
    while (took := best(count)) < CALL_SECONDS:
        more = math.ceil(1.2 * count * CALL_SECONDS / max(took, 1e-6))
        count = min(max(2 * count, more), 64 * count)
    return took / count


def _square(side: int, precision: str) -> jax.Array:
    """Returns a random matrix, created on the device, whose powers neither vanish nor overflow.

    A constant matrix would not do: a GPU multiplies it faster.
    """

    def square(key: jax.Array) -> jax.Array:
        return (jax.random.normal(key, (side, side)) / math.sqrt(side)).astype(DOTS[precision][0])

    return jax.jit(square)(jax.random.key(0))


@partial(jax.jit, static_argnums=(1, 2))
def products(kernel: jax.Array, precision: str, count: int) -> jax.Array:
    """Multiplies a matrix by `kernel` IN_A_ROUND times in each of `count` rounds, and returns the product."""
    wanted = DOTS[precision][1]

    def in_a_round(_: Any, x: jax.Array) -> jax.Array:
        for _ in range(IN_A_ROUND):
            x = jnp.dot(x, kernel, precision=wanted, preferred_element_type=kernel.dtype)
        return x

    return jax.lax.fori_loop(0, count, in_a_round, kernel)


@partial(jax.jit, static_argnums=1)
def copies(array: jax.Array, count: int) -> jax.Array:
    """Reads and writes the array `count` times, and returns it. A barrier keeps XLA from fusing the rounds."""
    return jax.lax.fori_loop(0, count, lambda _, x: jax.lax.optimization_barrier(x * 1.0001), array)


@partial(jax.jit, static_argnums=1)
def launches(array: jax.Array, count: int) -> jax.Array:
    """Runs LAUNCHES dependent small kernels in each of `count` rounds. Barriers keep XLA from fusing the kernels."""

    def chain(_: Any, x: jax.Array) -> jax.Array:
        for _ in range(LAUNCHES):
            x = jax.lax.optimization_barrier(x * 1.0001)
        return x

    return jax.lax.fori_loop(0, count, chain, array)


def _host_link_bytes(size: int, clock: Clock) -> float:
    """Measures the bytes per second from pinned host memory to the device. Returns 0 without pinned host memory."""
    device = jax.local_devices()[0]
    if "pinned_host" not in {space.kind for space in device.addressable_memories()}:
        return 0.0
    there = SingleDeviceSharding(device, memory_kind="device")
    pinned = jax.device_put(jnp.ones(size, jnp.uint8), SingleDeviceSharding(device, memory_kind="pinned_host"))

    def send(count: int) -> jax.Array:
        sent = pinned
        for _ in range(count):
            sent = jax.device_put(pinned, there)
        return sent

    return size / seconds_each(send, clock)
