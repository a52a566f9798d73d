"""Check of a state for NaN and infinity before it is saved, and the hash that identifies a state."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plimsoll.errors import StoppedError

PIECE = 2**20
"""Number of elements of an array that are checked at a time. Temporary arrays have this size."""


def fingerprint(leaves: Iterable[tuple[str, np.ndarray]], position: Mapping[str, Any]) -> str:
    """Returns a SHA-256 that is equal for two runs if their states are bit-identical.

    The hash covers parameters, optimizer, EMA, carry (state of examples), step, RNG and the data loader's position. It
    does not cover plan, times or paths.

    Args:
        leaves: Path and array of each leaf of the state, in the order of a checkpoint.
        position: Position of the data loader.
    """
    digest = hashlib.sha256()
    for path, leaf in leaves:
        digest.update(f"{path} {leaf.dtype} {leaf.shape}\n".encode())
        digest.update(np.ascontiguousarray(leaf).view(np.uint8).reshape(-1).data if leaf.size else b"")
    digest.update(json.dumps(position, sort_keys=True).encode())
    return digest.hexdigest()


def require_finite(leaves: Sequence[tuple[str, Any]], step: int) -> None:
    """Raises StoppedError if the state has a NaN or an infinity, so that it is not saved.

    Args:
        leaves: Path and array of each leaf of the state.
        step: Step of the state, for the message.
    """
    numbers = [(path, leaf) for path, leaf in leaves if not np.issubdtype(leaf.dtype, np.integer)]

    # On an accelerator, check arrays in device memory on the device, without copying them to the host.
    if jax.default_backend() != "cpu":
        on_device = [(path, leaf) for path, leaf in numbers if leaf.sharding.memory_kind == "device"]
        finite = jax.device_get(_are_finite([leaf for _, leaf in on_device]))
        sound = {path for (path, _), is_sound in zip(on_device, finite, strict=True) if is_sound}
        numbers = [(path, leaf) for path, leaf in numbers if path not in sound]

    for path, leaf in numbers:
        if not all(is_finite(np.asarray(shard.data)) for shard in leaf.addressable_shards):
            raise StoppedError(
                f"step {step}: {path} is not finite, so nothing was saved over an earlier checkpoint. Continue from"
                " that checkpoint by `plimsoll resume` with a lower --learning-rate, or find the cause by --debug-nans"
            )


@jax.jit
def _are_finite(leaves: list[jax.Array]) -> list[jax.Array]:
    """Returns a scalar bool per array, True if all elements are finite. Runs on the arrays' own device."""
    return [jnp.isfinite(leaf.astype(jnp.float32)).all() for leaf in leaves]


def is_finite(array: np.ndarray) -> bool:
    """Returns True if every element of an array is finite."""
    flat = array.reshape(-1)
    for first in range(0, flat.size, PIECE):
        piece = flat[first : first + PIECE].astype(np.float32, copy=False)
        if not np.isfinite(piece).all():
            return False
    return True
