"""Rates of the GPU that is here: work that is chained inside one compiled call, over the time of the call.

A product of 1,024 rows takes an H100 about a microsecond, and starting it and waiting for it about a hundred: timed one
call at a time, the card seems a hundred times slower than it is. So each call works for `CALL_SECONDS`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from plimsoll.planner import chips
from plimsoll.planner.types import Rates
from plimsoll.units import GIB, MIB

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
