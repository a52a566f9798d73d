"""Floating-point operations of a traced function and the bytes they read and write, counted from its dots.

They are the same on every chip. XLA's own count is empty on compile-only GPUs and leaves out loop trips on CPUs.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from jax.extend import core as jex
from jax.interpreters import partial_eval

LEAST_INSTRUCTIONS, INSTRUCTIONS_OF_AN_EQUATION = 2240, 1.26
"""Instructions of a compiled step: so many, and more for each equation of its trace."""


class Dots(NamedTuple):
    """Sums over all dots that a function does, each as often as it is done."""

    flops: float
    """Floating-point operations; multiply and add count as two."""
    moved_bytes: float
    """Bytes that are read and written with no cache: operands and results, recomputed ones each time."""
    number: float


def dots(closed: Any) -> Dots:
    """Counts the dots of a traced function. Those whose results nothing uses are left out."""
    return Dots(*_sums(live(closed)).tolist())


def dot_flops(closed: Any) -> float:
    """Counts floating-point operations; multiply and add count as two."""
    return dots(closed).flops


def _sums(jaxpr: Any) -> np.ndarray:
    sums = np.zeros(3)
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        inner = [_sums(inner) for inner in inner_jaxprs(equation)]
        if name == "dot_general":
            sums += _of_dot(equation)
        elif name == "cond":  # one branch is taken: the largest, since which is known only at run time
            sums += np.max(inner, axis=0)
        elif inner:
            times = equation.params["length"] if name == "scan" else 1
            sums += times * np.sum(inner, axis=0)
    return sums


def _of_dot(equation: Any) -> tuple[float, int, float]:
    """Returns the sums of one dot."""
    left, right = (variable.aval.shape for variable in equation.invars)
    (contracted, _), (batch, _) = equation.params["dimension_numbers"]
    inner = math.prod(left[axis] for axis in contracted)
    shared = math.prod(left[axis] for axis in batch)
    rows = math.prod(left) // max(1, inner * shared)
    cols = math.prod(right) // max(1, inner * shared)
    avals = [variable.aval for variable in [*equation.invars, *equation.outvars]]
    moved = sum(math.prod(aval.shape) * aval.dtype.itemsize for aval in avals)
    return 2.0 * shared * rows * inner * cols, moved, 1.0


def likely_instructions(closed: Any) -> int:
    """Returns how many instructions a traced step is likely to have once it is compiled for a CPU."""
    return round(LEAST_INSTRUCTIONS + INSTRUCTIONS_OF_AN_EQUATION * _equations(closed.jaxpr))


def _equations(jaxpr: Any) -> int:
    inner = [_equations(part) for equation in jaxpr.eqns for part in inner_jaxprs(equation)]
    return len(jaxpr.eqns) + sum(inner)


def live(closed: Any) -> Any:
    """Returns the jaxpr of a traced function without operations whose results nothing uses."""
    jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    return jaxpr


def inner_jaxprs(equation: Any) -> list[Any]:
    """Returns the jaxprs of functions that an operation calls: bodies of loops, branches, what is jitted."""
    jaxprs = []
    for value in equation.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, jex.ClosedJaxpr):
                jaxprs.append(item.jaxpr)
            elif isinstance(item, jex.Jaxpr):
                jaxprs.append(item)
    return jaxprs
