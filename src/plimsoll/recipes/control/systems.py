"""Linear control systems, read from `systems.toml`: their matrices are formulas of physical parameters."""

from __future__ import annotations

import ast
import math
import operator
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imported where it is needed: the command line's help imports this module, and NumPy takes 0.1 s
    import numpy as np

MOST_STATES, MOST_INPUTS = 12, 6
OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
}
FUNCTIONS = {"sqrt": math.sqrt, "exp": math.exp}


@dataclass(frozen=True, kw_only=True)
class Family:
    """Formulas of one kind of system: matrices of `x' = A x + B u`, or of `p'' = pulls p + frictions p' + pushes u` if
    the states x are positions p, then their rates p'."""

    name: str
    parameters: Mapping[str, float]
    """Nominal values."""
    shared: Mapping[str, str] = field(default_factory=dict)
    """Formulas of intermediate values, for use in the matrices."""
    A: Sequence[str] = ()
    B: Sequence[str] = ()
    pulls: Sequence[str] = ()
    frictions: Sequence[str] = ()
    pushes: Sequence[str] = ()
    state_cost: Sequence[float]
    """Diagonal of Q."""
    input_cost: Sequence[float]
    """Diagonal of R."""
    box: Sequence[float]
    """Half-widths of the box in which initial states are sampled uniformly."""
    doubt: str = ""

    @property
    def states(self) -> int:
        return len(self.state_cost)

    @property
    def inputs(self) -> int:
        return len(self.input_cost)

    def matrices(self, parameters: Mapping[str, float] | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Returns A (states, states) and B (states, inputs) in float64, of the nominal parameters by default."""
        import numpy as np

        values = dict(parameters or self.parameters)
        for name, formula in self.shared.items():
            (values[name],) = _row(formula, values)

        def matrix(rows: Sequence[str]) -> np.ndarray:
            return np.array([_row(row, values) for row in rows], float)

        if self.A:
            return matrix(self.A), matrix(self.B)
        positions = self.states // 2
        pulls, frictions, pushes = (
            np.diag(given[0]) if len(given) < positions else given
            for given in map(matrix, (self.pulls, self.frictions, self.pushes))
        )
        rates = np.zeros((positions, positions)), np.eye(positions)
        return np.block([list(rates), [pulls, frictions]]), np.concatenate([np.zeros_like(pushes), pushes])


def _row(formulas: str, values: Mapping[str, float]) -> list[float]:
    """Returns the values of arithmetic formulas, separated by commas."""

    def value(formula: ast.expr) -> float:
        match formula:
            case ast.Constant(value=float() | int() as number):
                return number
            case ast.Name(id=name):
                return values[name]
            case ast.UnaryOp(op=sign, operand=operand):
                return OPERATIONS[type(sign)](value(operand))
            case ast.BinOp(left=left, op=sign, right=right):
                return OPERATIONS[type(sign)](value(left), value(right))
            case ast.Call(func=ast.Name(id=name), args=[argument]):
                return FUNCTIONS[name](value(argument))
        raise ValueError(f"systems.toml: {ast.unparse(formula)} is no arithmetic")

    return [value(formula) for formula in _parsed(formulas)]


@cache
def _parsed(formulas: str) -> list[ast.expr]:
    parsed = ast.parse(f"({formulas},)", mode="eval").body
    assert isinstance(parsed, ast.Tuple)
    return parsed.elts


def _read(path: Path) -> dict[str, Family]:
    return {name: Family(name=name, **table) for name, table in tomllib.loads(path.read_text("utf-8")).items()}


FAMILIES = _read(Path(__file__).with_name("systems.toml"))
"""Families by name. Their order is part of the random seeds of variants."""
