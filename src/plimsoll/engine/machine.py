"""Devices that JAX finds on this machine, and their rates: small things timed, in a child like training's."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plimsoll.engine.compile import cpu_rates
from plimsoll.errors import PlimsollError
from plimsoll.training import distributed, memory
from plimsoll.units import MIB

TRANSFER_BYTES = 64 * MIB
"""Size of the array that is sent to the device to measure the rate."""


def examine(request: Mapping[str, Any]) -> dict[str, Any]:
    """Measures this machine, in about two seconds. Rates are the best of a few: what it can do without other load.

    With `together` (a `cluster.Asked` as a dictionary) every process reports its host and devices, and reads those of
    all, in the order of their numbers.
    """
    everyone = {}
    if together := request.get("together"):
        distributed.join(together["coordinator"], together["processes"], together["process"])
        board = distributed.Board()
        board.write(f"devices-{distributed.process()}", {"host": socket.gethostname(), "devices": _local_devices()})
        everyone["processes"] = [board.read(f"devices-{number}") for number in range(distributed.processes())]
        distributed.leave()  # when all have read them
    process_bytes = memory.resident_bytes()
    rates = cpu_rates()
    return {
        "backend": jax.default_backend(),
        "devices": _local_devices(),
        **everyone,
        "process_bytes": process_bytes,
        "flops": dict(rates.flops),
        "copy_bytes_per_second": rates.copy_bytes,
        "transfer_bytes_per_second": transfer_rate(),
        "step_seconds": step_seconds(),
    }


def _local_devices() -> list[dict[str, str]]:
    return [{"kind": device.device_kind, "name": str(device)} for device in jax.local_devices()]


def accelerators(_request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the devices JAX would train on, and what the allocator could give of each; allocates nothing."""
    try:
        devices = jax.local_devices()
    except RuntimeError as problem:  # their driver or library is missing
        raise PlimsollError(str(problem).partition(" (set JAX_PLATFORMS")[0]) from None
    stats = [(device, device.memory_stats() or {}) for device in devices]
    return {
        "backend": jax.default_backend(),
        "devices": [
            {"kind": device.device_kind, "memory_bytes": limits.get("bytes_limit")} for device, limits in stats
        ],
    }


def transfer_rate() -> float:
    """Returns bytes per second from host to device, with an array that is new to JAX each time."""
    best = float("inf")
    for _ in range(3):
        array = np.ones(TRANSFER_BYTES, np.uint8)
        started = time.perf_counter()
        jax.block_until_ready(jax.device_put(array, may_alias=False))
        best = min(best, time.perf_counter() - started)
    return TRANSFER_BYTES / best


def step_seconds() -> float:
    """Returns the seconds of a jitted gradient step of a small network in float32: compiling and running work."""

    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.mean(jnp.tanh(x @ weights) ** 2)

    @jax.jit
    def step(weights: jax.Array, x: jax.Array) -> jax.Array:
        return weights - 0.1 * jax.grad(loss)(weights, x)

    weights, x = jnp.full((256, 256), 0.01), jnp.ones((128, 256))
    weights = jax.block_until_ready(step(weights, x))
    best = float("inf")
    for _ in range(10):
        started = time.perf_counter()
        jax.block_until_ready(step(weights, x))
        best = min(best, time.perf_counter() - started)
    return best
