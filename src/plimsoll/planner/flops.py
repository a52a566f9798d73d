"""Floating-point operations of a traced function and the bytes they read and write, counted from its dots.

They are the same on every chip. XLA's own count is empty on compile-only GPUs and leaves out loop trips on CPUs.
"""

import math
from collections.abc import Callable
from typing import Any

from jax.extend import core as jex
from jax.interpreters import partial_eval


def dot_flops(closed: Any) -> float:
    """Counts floating-point operations; multiply and add count as two."""
    return _total(closed, _dot)


def dot_bytes(closed: Any) -> float:
    """Counts the bytes that dots read and write with no cache: operands and results, recomputed ones each time."""

    def operands(equation: Any) -> float:
        avals = [variable.aval for variable in [*equation.invars, *equation.outvars]]
        return float(sum(math.prod(aval.shape) * aval.dtype.itemsize for aval in avals))

    return _total(closed, operands)


def dots(closed: Any) -> float:
    """Counts dots."""
    return _total(closed, lambda _: 1.0)


def _total(closed: Any, price: Callable[[Any], float]) -> float:
    """Sums the price of every dot, as often as it is done. Dots whose results nothing uses are left out."""

    def total_of(jaxpr: Any) -> float:
        total = 0.0
        for equation in jaxpr.eqns:
            if equation.primitive.name == "dot_general":
                total += price(equation)
                continue
            trips = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
            total += trips * sum(map(total_of, _inner(equation.params)))
        return total

    live, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    return total_of(live)


def _inner(params: dict[str, Any]) -> list[Any]:
    inner = []
    for name, value in params.items():
        if name in ("fwd_jaxpr_thunk", "bwd", "jvp_jaxpr_fun", "cond_jaxpr"):
            continue
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, jex.ClosedJaxpr):
                inner.append(item.jaxpr)
            elif isinstance(item, jex.Jaxpr):
                inner.append(item)
    return inner


def _dot(equation: Any) -> float:
    (contracted, _), (batch, _) = equation.params["dimension_numbers"]
    left, right = (variable.aval.shape for variable in equation.invars)
    inner = math.prod(left[axis] for axis in contracted)
    shared = math.prod(left[axis] for axis in batch)
    rows = math.prod(left) // max(1, inner * shared)
    cols = math.prod(right) // max(1, inner * shared)
    return 2.0 * shared * rows * inner * cols
