"""What is looked at in a state before it is saved, and the number that identifies it."""

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
"""Numbers of an array that are looked at together: what that makes is as large."""


def fingerprint(leaves: Iterable[tuple[str, np.ndarray]], position: Mapping[str, Any]) -> str:
    """Returns one SHA-256 that two runs share exactly if they learned the same, bit for bit.

    It covers parameters, optimizer, EMA, carry, step, RNG and the loader's position, in the order of `leaves` (a
    checkpoint's own). It does not cover plan, time or paths.
    """
    digest = hashlib.sha256()
    for path, leaf in leaves:
        digest.update(f"{path} {leaf.dtype} {leaf.shape}\n".encode())
        digest.update(np.ascontiguousarray(leaf).view(np.uint8).reshape(-1).data if leaf.size else b"")
    digest.update(json.dumps(position, sort_keys=True).encode())
    return digest.hexdigest()


def require_finite(leaves: Sequence[tuple[str, Any]], step: int) -> None:
    """Raises StoppedError for a state with NaN or infinity in it, which must not replace a good one."""
    numbers = [(path, leaf) for path, leaf in leaves if not np.issubdtype(leaf.dtype, np.integer)]

    # Beside an accelerator what lies in its memory is not copied to the host.
    if jax.default_backend() != "cpu":
        on_device = [(path, leaf) for path, leaf in numbers if leaf.sharding.memory_kind == "device"]
        finite = jax.device_get(_are_finite([leaf for _, leaf in on_device]))
        sound = {path for (path, _), is_sound in zip(on_device, finite, strict=True) if is_sound}
        numbers = [(path, leaf) for path, leaf in numbers if path not in sound]

    for path, leaf in numbers:
        if not all(is_finite(np.asarray(shard.data)) for shard in leaf.addressable_shards):
            raise StoppedError(
                f"step {step}: {path} is not finite, so nothing was saved over an earlier checkpoint. Lower"
                " --learning-rate, or find the cause with --debug-nans, and run the same command again"
            )


@jax.jit
def _are_finite(leaves: list[jax.Array]) -> list[jax.Array]:
    """Returns of each array whether all of it is finite, where it is: nothing crosses to the host."""
    return [jnp.isfinite(leaf.astype(jnp.float32)).all() for leaf in leaves]


def is_finite(array: np.ndarray) -> bool:
    """Returns whether every number of an array is finite."""
    flat = array.reshape(-1)
    for first in range(0, flat.size, PIECE):
        piece = flat[first : first + PIECE].astype(np.float32, copy=False)
        if not np.isfinite(piece).all():
            return False
    return True
