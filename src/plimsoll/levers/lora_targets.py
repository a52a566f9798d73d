"""Names of the kernels beside which LoRA learns (lora.py), without JAX: a formula reads them before any compile."""

from __future__ import annotations

import re
from collections.abc import Sequence

from plimsoll.errors import RecipeError

KERNELS = {
    "q": "query", "k": "key", "v": "value", "o": "out", "gate": "gate", "up": "up", "down": "down",
}  # fmt: skip
"""Short name of a target to the kernel's name in our models."""
ALL_LINEAR = "all-linear"


def patterns_of(targets: str | Sequence[str]) -> tuple[str, ...]:
    """Returns regular expressions of leaf paths, like `blocks/query/kernel`, from what `--lora-targets` says.

    Args:
        targets: `all-linear`, every kernel of the blocks; short names (`q,k,v,o,gate,up,down`), as one text or several;
            or anything else, a regular expression that matches a path from its beginning to its end.

    Raises:
        RecipeError: Nothing is named, or a pattern is no regular expression.
    """
    names = [name.strip() for name in targets.split(",")] if isinstance(targets, str) else list(targets)
    if names == [ALL_LINEAR]:
        return ("blocks/[^/]+/kernel",)
    if names and all(name in KERNELS for name in names):
        return tuple(f"blocks/{KERNELS[name]}/kernel" for name in names)
    patterns = (targets,) if isinstance(targets, str) else tuple(targets)
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as problem:
            raise RecipeError(
                f"--lora-targets {pattern} is neither {', '.join(KERNELS)} nor {ALL_LINEAR}, and no regular expression"
                f" of leaf paths ({problem}): name some of these, separated by commas"
            ) from None
    if not any(patterns):
        raise RecipeError(f"--lora-targets names nothing: give some of {','.join(KERNELS)}, or {ALL_LINEAR}")
    return patterns
