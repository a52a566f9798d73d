"""LoRA: the weights stay as they are, and a product of two thin matrices beside each is learned.

`x @ kernel + (alpha / rank) (x @ a) @ b`, with `a` of (inner, rank) drawn at random and `b` of (rank, cols) zero, so
that training starts from what the frozen model computes. Hu et al. 2021, https://arxiv.org/abs/2106.09685, equation 3.

It saves gradient and moments of all that is frozen, and lets that be kept in fewer bits (frozen.py). Not a lever of the
planner: it changes what is learned, so a recipe chooses it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from plimsoll.errors import RecipeError
from plimsoll.levers.frozen import FrozenBits, Packed, frozen_dot, stored
from plimsoll.levers.offload import on_host
from plimsoll.levers.precision import Precision, dot
from plimsoll.types import Batch, Carry, LossSum, Metrics, Params, StoresFrozen, Task


@partial(jax.tree_util.register_dataclass, data_fields=["base", "a", "b"], meta_fields=["scale"])
@dataclass(frozen=True)
class Adapted:
    """A frozen kernel of (..., inner, cols) and what is learned beside it."""

    base: Any
    """An array or `Packed`."""
    a: Array
    b: Array
    scale: float


def linear(
    x: Float[Array, "... inner"], kernel: Any, *, precision: Precision, platform: str
) -> Float[Array, "... cols"]:
    """Returns `x @ kernel` whatever form the kernel has: an array, frozen in fewer bits, or adapted."""
    how: dict[str, Any] = {"precision": precision, "platform": platform}
    if isinstance(kernel, Adapted):
        low_rank = dot(dot(x, kernel.a, **how), kernel.b, **how)
        return frozen_dot(x, kernel.base, **how) + kernel.scale * low_rank
    if isinstance(kernel, Packed) or on_host(kernel):
        return frozen_dot(x, kernel, **how)
    return dot(x, kernel, **how)


class LoRA:
    """A `Task` that learns thin matrices beside those kernels of another task whose path matches a pattern.

    A path is spelt `blocks/query/kernel`; `patterns` are regular expressions that must match one from its beginning to
    its end. Everything that `task` would learn is frozen. The task's dots have to go through `linear`.
    """

    def __init__(self, task: Task, patterns: Sequence[str], *, rank: int, alpha: float | None = None) -> None:
        if rank < 1:
            raise RecipeError(f"the rank of LoRA must be 1 or more, got {rank}")
        self.task, self.patterns, self.rank = task, tuple(patterns), rank
        self.scale = (rank if alpha is None else alpha) / rank

    def init(self, key: Array) -> Params:
        base_key, key = jax.random.split(key)
        params = self.task.init(base_key)
        learned: dict[str, dict[str, Array]] = {}
        paths = []
        for path, leaf in jax.tree_util.tree_flatten_with_path(params["trainable"])[0]:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            paths.append(name)
            if not any(re.fullmatch(pattern, name) for pattern in self.patterns):
                continue
            if leaf.ndim < 2:
                raise RecipeError(f"LoRA is for kernels, and {name} is of shape {leaf.shape}: narrow the pattern")
            *lead, inner, cols = leaf.shape
            if self.rank > min(inner, cols):
                raise RecipeError(
                    f"LoRA of rank {self.rank} is more than {name} of {inner} x {cols} has: at most {min(inner, cols)}"
                )
            a = jax.random.normal(jax.random.fold_in(key, len(learned)), (*lead, inner, self.rank)) * inner**-0.5
            learned[name] = {"a": a, "b": jnp.zeros((*lead, self.rank, cols))}
        if not learned:
            raise RecipeError(
                f"no leaf matches {' or '.join(self.patterns)}: LoRA would learn nothing. The leaves are"
                f" {', '.join(paths)}"
            )
        return {"trainable": learned, "frozen": {"base": params["trainable"], "frozen": params.get("frozen", {})}}

    def loss(
        self, params: Params, carry: Carry, batch: Batch, keys: Array, *, train: bool
    ) -> tuple[LossSum, Carry, Metrics]:
        whole: Params = {"trainable": self.adapted(params)}
        if params["frozen"]["frozen"]:
            whole["frozen"] = params["frozen"]["frozen"]
        return self.task.loss(whole, carry, batch, keys, train=train)

    def stored(self, frozen: dict, bits: FrozenBits) -> dict:
        """Returns the frozen weights in so many bits, in the form that the other task keeps (`types.StoresFrozen`)."""
        if not isinstance(self.task, StoresFrozen):
            return stored(frozen, bits)
        own = frozen["frozen"]
        return {"base": self.task.stored(frozen["base"], bits), "frozen": self.task.stored(own, bits) if own else own}

    def adapted(self, params: Params) -> Any:
        """Returns the base, with what is learned beside it."""

        def adapted_leaf(path: Any, leaf: Any) -> Any:
            adapter = params["trainable"].get(jax.tree_util.keystr(path, simple=True, separator="/"))
            if adapter is None:
                return jax.tree.map(jax.lax.stop_gradient, leaf)
            # The scale is the same in every layer, so that a scan may cut the rest.
            return Adapted(leaf, adapter["a"], adapter["b"], self.scale)

        is_leaf = lambda leaf: isinstance(leaf, Packed)  # noqa: E731
        return jax.tree_util.tree_map_with_path(adapted_leaf, params["frozen"]["base"], is_leaf=is_leaf)
