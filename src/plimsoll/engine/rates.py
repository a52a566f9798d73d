"""Rates of the CPU or the GPU that is here, by work that is timed.

On a CPU each call is timed. On a GPU a product of 1,024 rows takes about a microsecond, and starting it and waiting
for it about a hundred: timed one call at a time, the card seems a hundred times slower than it is. So work is chained
inside one compiled call that takes `CALL_SECONDS`.
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
"""Calls of a step that does nothing, to measure what a call costs: a tenth of a second."""
TOUCHED = 64 * MIB
"""Bytes whose pages are taken to measure what that costs: huge pages, as training's are (environment.py)."""

CALL_SECONDS = 0.2
"""Time that a call takes at least: some thousand times what starting it and waiting for it costs."""
CALLS = 5
"""Calls that are timed; the best counts, which is what the card can do without other load."""
SIDE = 8192
"""Rows and columns of the matrices whose product is timed, where the card has the memory: large enough to fill it."""
COPIED_BYTES, SENT_BYTES = GIB, 256 * MIB
"""Bytes of the arrays that are copied on the card, and sent to it from its host."""
IN_A_ROUND = 2
"""Products in a round: with one, the compiler copies its result back to where the next round reads it."""
SMALL, LAUNCHES = 2**14, 100
"""Elements of an array whose kernel is little but its launch, and how many of them follow one another in a round."""
DOTS: Mapping[str, tuple[Any, Any]] = {
    "float32": (jnp.float32, jax.lax.Precision.HIGHEST),
    "tf32": (jnp.float32, jax.lax.DotAlgorithmPreset.TF32_TF32_F32),
    "bfloat16": (jnp.bfloat16, None),
    "float16": (jnp.float16, None),
}
"""Precision to the type of the operands and the precision of JAX's dot."""

Clock = Callable[[], float]


def cpu_rates() -> Rates:
    """Measures dots, small dots, copies, page faults and calls of this machine: about two seconds."""
    # Dots, in turn.
    rows, inner, columns = 1024, 512, 1024
    random = np.random.default_rng(0)
    x = random.standard_normal((rows, inner), np.float32)
    kernel = random.standard_normal((inner, columns), np.float32)
    precisions = ("float32", "bfloat16")
    dots = [jax.jit(partial(dot, compute=Form(precision, "cpu"))) for precision in precisions]
    dot_seconds = _seconds(*(_ready(each, x, kernel) for each in dots))
    work = 2.0 * rows * inner * columns
    flops = {precision: work / seconds for precision, seconds in zip(precisions, dot_seconds, strict=True)}

    # Bytes that are copied, and touched for the first time.
    large = np.ones(16 * MIB, np.float32)
    (copy_seconds,) = _seconds(_ready(jax.jit(lambda a: a + 1), large))
    (touch_seconds,) = _seconds(lambda: np.ones(TOUCHED, np.uint8), rounds=8)
    copied = 2 * large.nbytes / copy_seconds
    return Rates(
        flops=flops,
        copy_bytes=copied,
        link_bytes=copied,  # between devices that are parts of it
        first_touch_bytes=TOUCHED / touch_seconds,
        loop_seconds=0.0,
        dot_seconds=_dot_seconds(flops["float32"]),
        call_seconds=_call_seconds(),
        source="measured here",
    )


def _dot_seconds(flops: float) -> float:
    """Returns what a small dot costs besides its arithmetic, from the gradient of blocks that are little else."""
    rows, width, layers = 128, 128, 8
    random = np.random.default_rng(0)
    kernels = list(random.standard_normal((layers, 2, width, width), np.float32) / math.sqrt(width))

    def loss(kernels: Sequence[jax.Array], x: jax.Array) -> jax.Array:
        for kernel in kernels:
            normed = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5)
            x = x + jax.nn.silu(normed @ kernel[0]) @ kernel[1]
        return jnp.sum(x * x)

    gradient = _ready(jax.jit(jax.grad(loss)), kernels, random.standard_normal((rows, width), np.float32))
    count = 3 * 2 * layers - 1  # nobody needs the gradient of the first one's input
    (seconds,) = _seconds(gradient)
    return max(0.0, seconds / count - 2 * rows * width * width / flops)


def _call_seconds() -> float:
    """Returns what a step costs besides its work: its call with arrays of NumPy, and its numbers read.

    The state is that of three small layers under Adam: an argument costs 2 us or so.
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

    (seconds,) = _seconds(call, rounds=CPU_CALLS)
    return seconds


def _ready(function: Any, *arguments: Any) -> Callable[[], Any]:
    """Returns a call of a jitted function that is compiled, with its arguments on the device, and waited for."""
    on_device = [jax.device_put(argument) for argument in arguments]
    compiled = function.lower(*on_device).compile()
    return lambda: jax.block_until_ready(compiled(*on_device))


def _seconds(*calls: Callable[[], Any], rounds: int = 12) -> list[float]:
    """Returns the seconds of one call of each, in turn, so that other work on the machine affects all of them alike.

    The lower quartile: the median when others take the cores, without the clock's own mistakes at the bottom.
    """
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, of_call in zip(calls, times, strict=True):
            begin = time.perf_counter()
            call()
            of_call.append(time.perf_counter() - begin)
    return [sorted(of_call)[rounds // 4] for of_call in times]


def card_rates(clock: Clock = time.perf_counter) -> Rates:
    """Measures dots, copies, launches and the link to the host of the first device: some seconds.

    Args:
        clock: Clock in seconds.

    Returns:
        The rates of the precisions that the card's compiler takes, and no links between devices.
    """
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 16 * GIB)
    side = next(n for n in (SIDE, SIDE // 2, SIDE // 4, SIDE // 8) if 12 * n * n <= limit // 4 or n == SIDE // 8)
    flops = {}
    for precision in DOTS:
        try:
            seconds = seconds_each(partial(products, _square(side, precision), precision), clock)
            flops[precision] = IN_A_ROUND * 2 * side**3 / seconds
        except (jax.errors.JaxRuntimeError, ValueError):  # by XLA, or by JAX before it
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
    """Returns the seconds of one round of a call that does `count` rounds of work, and is waited for.

    The number of rounds grows until a call takes `CALL_SECONDS`, so what starting and waiting cost does not show.

    Args:
        call: Does as many rounds as it is told, within one compiled function or queued behind one another.
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
    """Returns a random matrix, made on the device, whose powers neither vanish nor overflow.

    Its values are not constant: a card is faster where they are.
    """

    def square(key: jax.Array) -> jax.Array:
        return (jax.random.normal(key, (side, side)) / math.sqrt(side)).astype(DOTS[precision][0])

    return jax.jit(square)(jax.random.key(0))


@partial(jax.jit, static_argnums=(1, 2))
def products(kernel: jax.Array, precision: str, count: int) -> jax.Array:
    """Returns the result of `count` rounds of IN_A_ROUND products, each of the one before it and `kernel`."""
    wanted = DOTS[precision][1]

    def in_a_round(_: Any, x: jax.Array) -> jax.Array:
        for _ in range(IN_A_ROUND):
            x = jnp.dot(x, kernel, precision=wanted, preferred_element_type=kernel.dtype)
        return x

    return jax.lax.fori_loop(0, count, in_a_round, kernel)


@partial(jax.jit, static_argnums=1)
def copies(array: jax.Array, count: int) -> jax.Array:
    """Returns the array after it was read and written `count` times; the barrier keeps the rounds apart."""
    return jax.lax.fori_loop(0, count, lambda _, x: jax.lax.optimization_barrier(x * 1.0001), array)


@partial(jax.jit, static_argnums=1)
def launches(array: jax.Array, count: int) -> jax.Array:
    """Returns the result of `count` times LAUNCHES small kernels that wait for one another, kept apart by barriers."""

    def chain(_: Any, x: jax.Array) -> jax.Array:
        for _ in range(LAUNCHES):
            x = jax.lax.optimization_barrier(x * 1.0001)
        return x

    return jax.lax.fori_loop(0, count, chain, array)


def _host_link_bytes(size: int, clock: Clock) -> float:
    """Returns bytes per second from pinned memory of the host to the device; 0 where the backend has no such memory."""
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
