"""One SHA-256 that two runs share exactly if they learned the same: bit for bit.

Over parameters, optimizer, EMA, carry, step, RNG and the position in the data, in a fixed order; not over plan,
time or paths.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


def fingerprint(leaves: Iterable[tuple[str, np.ndarray]], position: Mapping[str, Any]) -> str:
    """Of the leaves in the order they come (a checkpoint's own) and the loader's position."""
    digest = hashlib.sha256()
    for path, leaf in leaves:
        digest.update(f"{path} {leaf.dtype} {leaf.shape}\n".encode())
        digest.update(np.ascontiguousarray(leaf).view(np.uint8).reshape(-1).data if leaf.size else b"")
    digest.update(json.dumps(position, sort_keys=True).encode())
    return digest.hexdigest()
