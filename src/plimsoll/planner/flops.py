"""Floating-point operations and memory traffic of a traced function, counted from its matmuls (`dot_general`).

The counts are the same for every chip. XLA's own count is empty for a GPU that is not in the machine, and on a CPU it
counts the body of a loop once.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from jax.extend import core as jex
from jax.interpreters import partial_eval

LEAST_INSTRUCTIONS, INSTRUCTIONS_OF_AN_EQUATION = 2240, 1.26
"""Likely number of instructions of a compiled step: a constant, and the number per equation of its jaxpr."""


class Dots(NamedTuple):
    """Sums over all matmuls of a function. A matmul in a loop counts once for each round."""

    flops: float
    """Floating-point operations of the matmuls; multiply and add count as two."""
    moved_bytes: float
    """Bytes that the matmuls read and write without a cache: their operands and results."""
    number: float
    """Number of matmuls."""


def dots(closed: Any) -> Dots:
    """Counts the matmuls of a traced function, without those whose results nothing uses."""
    return Dots(*_sums(live(closed)).tolist())


def dot_flops(closed: Any) -> float:
    """Returns the floating-point operations of the matmuls of a traced function; multiply and add count as two."""
    return dots(closed).flops


def _sums(jaxpr: Any) -> np.ndarray:
    sums = np.zeros(3)
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        inner = [_sums(inner) for inner in inner_jaxprs(equation)]
        if name == "dot_general":
            sums += _of_dot(equation)
        elif name == "cond":  # only one branch runs: count the largest
            sums += np.max(inner, axis=0)
        elif inner:
            times = equation.params["length"] if name == "scan" else 1
            sums += times * np.sum(inner, axis=0)
    return sums


def _of_dot(equation: Any) -> tuple[float, int, float]:
    """Returns the fields of `Dots` for one matmul: its operations, its bytes, and the number 1."""
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
    """Returns the likely number of instructions of a traced step once it is compiled for a CPU."""
    return round(LEAST_INSTRUCTIONS + INSTRUCTIONS_OF_AN_EQUATION * _equations(closed.jaxpr))


def _equations(jaxpr: Any) -> int:
    inner = [_equations(part) for equation in jaxpr.eqns for part in inner_jaxprs(equation)]
    return len(jaxpr.eqns) + sum(inner)


def live(closed: Any) -> Any:
    """Returns the jaxpr of a traced function without operations whose results nothing uses."""
    jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    return jaxpr


def inner_jaxprs(equation: Any) -> list[Any]:
    """Returns the jaxprs that an operation calls: bodies of loops, branches, and jitted functions."""
    jaxprs = []
    for value in equation.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, jex.ClosedJaxpr):
                jaxprs.append(item.jaxpr)
            elif isinstance(item, jex.Jaxpr):
                jaxprs.append(item)
    return jaxprs
