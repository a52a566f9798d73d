"""Devices that JAX finds on this machine, and their measured speed. Runs in a child process."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plimsoll.engine.rates import card_rates, cpu_rates, seconds_of
from plimsoll.errors import PlimsollError
from plimsoll.training import distributed, memory
from plimsoll.units import MIB

MOST_OF_A_MESSAGE = 400
"""Largest number of characters of a message from JAX or its plug-in. Longer messages are cut off."""
BATCH_BYTES = 16 * MIB
"""Bytes of the batch whose transfer is timed."""


def examine(request: Mapping[str, Any]) -> dict[str, Any]:
    """Measures the speed of this machine's CPU, in about two seconds, or of its GPU, which takes longer.

    Each speed is measured several times, so that other load on the machine changes the result little.

    Args:
        request: May have `together`, a `cluster.Membership` as a dictionary, to join several processes. The result then
            has `processes`: host and devices of every process, by process number.

    Returns:
        Backend, devices, FLOP/s by precision, bytes per second of copies and transfers, seconds of compiling and
        calling a function, and resident bytes of the process.
    """
    everyone = {}
    if together := request.get("together"):
        distributed.join(together["coordinator"], together["processes"], together["process"])
        own = {"host": socket.gethostname(), "devices": _local_devices()}
        everyone["processes"] = distributed.of_each("devices", own)
    process_bytes = memory.resident_bytes()
    backend = jax.default_backend()
    rates = card_rates() if backend == "gpu" else cpu_rates()
    of_card = {"launch_seconds": rates.dot_seconds, "host_link_bytes_per_second": rates.host_link_bytes}
    return {
        "backend": backend,
        "devices": _local_devices(),
        **everyone,
        "process_bytes": process_bytes,
        "flops": dict(rates.flops),
        **(of_card if backend == "gpu" else {}),
        "copy_bytes_per_second": rates.copy_bytes,
        "transfer_bytes_per_second": _transfer_bytes(),
        **_jit_seconds(),
    }


def _transfer_bytes() -> float:
    """Measures the bytes per second of moving a batch from NumPy to the first device."""
    batch = np.ones(BATCH_BYTES, np.uint8)

    def transfer() -> None:
        jax.block_until_ready(jax.device_put(batch))

    (seconds,) = seconds_of(transfer)
    return BATCH_BYTES / seconds


def _jit_seconds() -> dict[str, float]:
    """Measures the seconds of compiling a small function, and of one call of the compiled function."""
    x = jnp.ones((128, 128))
    begin = time.perf_counter()
    compiled = jax.jit(lambda x: jnp.tanh(x @ x).sum()).lower(x).compile()
    compile_seconds = time.perf_counter() - begin
    (call_seconds,) = seconds_of(lambda: jax.block_until_ready(compiled(x)))
    return {"compile_seconds": compile_seconds, "call_seconds": call_seconds}


def _local_devices() -> list[dict[str, str]]:
    return [{"kind": device.device_kind, "name": str(device)} for device in jax.local_devices()]


def accelerators(_request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the devices that JAX would train on, each with its allocator's limit in bytes. Allocates nothing.

    Raises:
        PlimsollError: JAX finds no device, or its plug-in fails. The text has the plug-in's messages.
    """
    messages = _Messages()
    discovery = logging.getLogger("jax._src.xla_bridge")
    discovery.addHandler(messages)
    discovery.propagate = False  # JAX prints the traceback of a plug-in that fails
    try:
        devices = jax.local_devices()
    except RuntimeError as problem:  # the driver or a library of the devices is missing
        messages.texts.append(str(problem).partition(" (set JAX_PLATFORMS")[0])
        devices = []
    if not devices or (messages.texts and jax.default_backend() == "cpu"):
        raise PlimsollError(_one_paragraph(messages.texts))
    stats = [(device, device.memory_stats() or {}) for device in devices]
    return {
        "backend": jax.default_backend(),
        "devices": [
            {"kind": device.device_kind, "memory_bytes": limits.get("bytes_limit")} for device, limits in stats
        ],
    }


class _Messages(logging.Handler):
    """Logging handler that stores the texts of warnings, errors and exceptions instead of printing them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        raised = record.exc_info[1] if record.exc_info else None
        self.texts.append(record.getMessage() if raised is None else str(raised))


def _one_paragraph(texts: list[str]) -> str:
    """Joins messages into one line. Cuts each off after MOST_OF_A_MESSAGE characters."""
    return "; ".join(dict.fromkeys(" ".join(text.split())[:MOST_OF_A_MESSAGE] for text in texts))
