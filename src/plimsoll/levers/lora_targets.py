"""Kernels that get an adapter (lora.py): matches `--lora-targets` against the leaves of a model. Imports no JAX."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from plimsoll.errors import RecipeError, names_in_words

KERNELS = {
    "q": "query", "k": "key", "v": "value", "o": "out", "gate": "gate", "up": "up", "down": "down",
}  # fmt: skip
"""Map from a short name in `--lora-targets` to the name of the kernel in plimsoll's models."""
ALL_LINEAR = "all-linear"


def patterns_of(targets: str) -> tuple[str, ...]:
    """Returns regular expressions of leaf paths, like `blocks/query/kernel`, for a value of `--lora-targets`.

    Args:
        targets: `all-linear` for every kernel of the blocks; short names, like `q,k,v,o,gate,up,down`; or a regular
            expression that matches a complete path.

    Raises:
        RecipeError: `targets` is empty, or no regular expression.
    """
    names = [name.strip() for name in targets.split(",")]
    if names == [ALL_LINEAR]:
        return ("blocks/[^/]+/kernel",)
    if KERNELS.keys() >= set(names):
        return tuple(f"blocks/{KERNELS[name]}/kernel" for name in names)
    try:
        re.compile(targets or "(")
    except re.error as problem:
        raise RecipeError(
            f"--lora-targets {targets!r} is neither some of {','.join(KERNELS)} nor {ALL_LINEAR}, and no regular"
            f" expression of leaf paths ({problem}): name some of these, separated by commas"
        ) from None
    return (targets,)


def kernels_to_adapt(
    leaves: Mapping[str, tuple[int, ...]], patterns: Sequence[str], rank: int
) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every kernel that gets an adapter, by path.

    Args:
        leaves: Shape of every leaf of the model, by path.
        patterns: Regular expressions from `patterns_of`.
        rank: Rank of the adapters.

    Raises:
        RecipeError: The patterns match no leaf, all leaves, or a leaf that is no kernel; or the rank is too large.
    """
    found = {name: shape for name, shape in leaves.items() if any(re.fullmatch(p, name) for p in patterns)}
    asked = " or ".join(patterns)
    if not found:
        raise RecipeError(
            f"no leaf matches {asked}: LoRA would learn nothing. Name some of {','.join(KERNELS)}, or {ALL_LINEAR}, or"
            f" match leaves like {names_in_words(leaves)}"
        )
    if len(found) == len(leaves) > 1:
        raise RecipeError(
            f"{asked} matches every leaf, norms and embeddings too, and LoRA is for kernels: name some of"
            f" {','.join(KERNELS)}, or {ALL_LINEAR}, or a narrower pattern: the leaves are {names_in_words(leaves)}"
        )
    for name, shape in found.items():
        if len(shape) < 2:
            raise RecipeError(f"LoRA is for kernels, and {name} is of shape {shape}: narrow the pattern")
        inner, cols = shape[-2:]
        if rank > min(inner, cols):
            raise RecipeError(
                f"LoRA of rank {rank} is too large for {name} of {inner} x {cols}: at most {min(inner, cols)}"
            )
    return found


def named(paths: Sequence[str]) -> str:
    """Returns a value of `--lora-targets` that matches these paths: short names, or if a path has none, a pattern."""
    short = {f"blocks/{kernel}/kernel": name for name, kernel in KERNELS.items()}
    if all(path in short for path in paths):
        return ",".join(name for path, name in short.items() if path in paths)
    return "|".join(re.escape(path) for path in paths)
